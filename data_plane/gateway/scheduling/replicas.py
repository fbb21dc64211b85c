"""The live replicas, from their heartbeats in Redis, with the adapters on each and the pages that reservations hold.
placement.py decides which of them suits a request.

A replica is dropped when its status expires in Redis, or when its heartbeat has not changed for too long by this
process's own clock. While heartbeats cannot be read, fresh replicas stay fresh for as long as a gateway may serve
without Redis. Residency is advice: when it cannot be read, requests are placed without it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.replicas import ReplicaStatus, Residency, read_status
from core.kv_pages import PAGE_TOKENS
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import NOTHING_RESIDENT, Candidate, Resident
from data_plane.gateway.scheduling.replica_load import ProviderLoad, ReplicaLoad
from data_plane.gateway.scheduling.shortlist import CandidatePool, Shortlist

_log = structlog.get_logger()
_residency = msgspec.json.Decoder(Residency)
_HELD_AT_ONCE_MAX = 32
_READ_WHOLE_MAX = 256  # replicas whose heartbeats are read at each look; of more, a part, in turn
_PARTS = 4  # looks in the time of one heartbeat
_NO_POOL = CandidatePool()
_NO_PAGES: Final = MappingProxyType[str, int]({})
_Seen = tuple[str, int]  # boot id and residency version


def no_replicas(_adapter: str) -> frozenset[str]:
    """No replica has failed to load this adapter."""
    return frozenset()


class OutsideModel(NamedTuple):
    """What stands among the replicas for a model of an outside provider: a status that no agent has written, and the KV
    pages that a request of its whole context would take.
    """

    status: ReplicaStatus
    context_pages: int


def no_providers() -> Sequence[OutsideModel]:
    """No outside provider serves a model."""
    return ()


class Replicas:
    """The live replicas, refreshed by ``run_forever``."""

    def __init__(
        self,
        redis: Redis,
        peers: GatewayPeers,
        *,
        poll_ms: int,
        stale_s: float,
        allows: Callable[[ReplicaStatus], bool],
        failed_by: Callable[[str], frozenset[str]] = no_replicas,
        outside: Callable[[], Sequence[OutsideModel]] = no_providers,
    ) -> None:
        """``allows`` says whether requests may be sent to a replica, ``failed_by`` which replicas recently failed to
        load an adapter, ``outside`` the models of outside providers, which have no heartbeat.
        """
        self._redis = redis
        self.peers = peers
        self._allows = allows
        self.failed_by = failed_by
        self._outside = outside
        self._poll_s = poll_ms / 1000
        self._stale_s = stale_s
        self._ids: list[str] = []
        self._heartbeats: dict[str, tuple[int, float]] = {}  # each heartbeat, and when this process first saw it
        self._loads: dict[str, ReplicaLoad] = {}
        self._resident: dict[str, tuple[_Seen, Resident]] = {}
        self._pools: dict[str, CandidatePool] = {}  # by base model
        self._candidates: dict[str, Candidate] = {}
        self._looks = 0
        self._held_next = 0
        self._pages_total: dict[str, int] = {}
        self._pages_of_pools: dict[str, Counter[str]] = {}
        self._block_tokens: dict[str, int] = {}
        self._on_refresh: list[Callable[[], None]] = []
        self.read_at = 0.0  # by the monotonic clock
        self.reachable = False

    def alive(self, base_model: str) -> list[Candidate]:
        """Replicas of a base model with a fresh heartbeat and a circuit that passes requests."""
        return self._serving(self.pool(base_model))

    def shortlist(self, request: InferenceRequest) -> Shortlist:
        """Those of ``alive`` that are worth ranking for a request."""
        candidates, homes = self._pool(request.base_model).shortlist(request)
        return Shortlist(self._serving(candidates), homes)

    def roomy(self, base_model: str) -> list[Candidate]:
        """Those of ``alive`` where a waiting request may find room."""
        return self._serving(self._pool(base_model).roomy())

    def free(self, replica: ReplicaStatus) -> None:
        """A request has left a replica."""
        self._pool(replica.base_model).free(replica)

    def pool(self, base_model: str) -> list[Candidate]:
        """All replicas of a base model, including those that take no requests now."""
        return list(self._pool(base_model))

    def _pool(self, base_model: str) -> CandidatePool:
        return self._pools.get(base_model, _NO_POOL)

    def _serving(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        oldest = max(self.read_at, time.monotonic() - redis_keys.GATEWAYS_LEASE_S_MAX) - self._stale_s
        return [
            candidate
            for candidate in candidates
            if self._heartbeats[candidate.status.id][1] >= oldest and self._allows(candidate.status)
        ]

    def candidates(self) -> Collection[Candidate]:
        """All replicas of all base models."""
        return self._candidates.values()

    def counted_tokens(self, replica: ReplicaStatus) -> int | None:
        """The tokens that an engine has counted since its start, by its last heartbeat; None when it has none now."""
        known = self._candidates.get(replica.id)
        return None if known is None or known.status.boot_id != replica.boot_id else known.status.counted_tokens

    def pages_total(self, base_model: str) -> int:
        """KV pages of all replicas of a base model."""
        return self._pages_total.get(base_model, 0)

    def pages_of_pools(self, base_model: str) -> Mapping[str, int]:
        """KV pages of a base model's replicas by the names of their pools."""
        return self._pages_of_pools.get(base_model, _NO_PAGES)

    def block_tokens(self, base_model: str) -> int:
        """Tokens in one KV block of a base model's engines, the largest of them."""
        return self._block_tokens.get(base_model, PAGE_TOKENS)

    def call_after_refresh(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each refresh of the list."""
        self._on_refresh.append(listener)

    async def run_forever(self) -> None:
        """Refresh the list every ``poll_ms``. Never returns."""
        while True:
            try:
                await self.refresh()
                self.reachable = True
            except (RedisError, OSError) as error:
                if self.reachable:
                    _log.warning("replicas unreadable; using the last list", error=repr(error))
                self.reachable = False
                self.peers.expire(self._pools)
            await asyncio.sleep(self._poll_s)

    async def refresh(self) -> None:
        """Read heartbeats and held pages, of many replicas a part and of others the next time, and the residency of
        these where it has changed. Raises redis.RedisError.
        """
        self._looks += 1
        parts = 1 if len(self._ids) <= _READ_WHOLE_MAX else _PARTS
        outside = {each.status.id: each for each in self._outside()}
        ids = [*self._ids[self._looks % parts :: parts], *outside]
        found, values, held = await self._read(ids)
        if found != self._ids:
            new = sorted(set(found).difference(self._ids))
            self._ids = found
            if new:
                _, more, more_held = await self._read(new)
                ids, values, held = ids + new, values + more, held + more_held
        listed = set(found)
        statuses = {name: each.status for name, each in self._candidates.items() if name in listed}
        for name, value in zip(ids, values, strict=True):
            statuses.pop(name, None)
            # Without a value it has expired: the agent has stopped.
            if name in listed and value is not None and (status := read_status(value)) is not None:
                statuses[status.id] = status
                if self._heartbeats.get(status.id, (0, 0.0))[0] != status.heartbeat_ms:
                    self._heartbeats[status.id] = (status.heartbeat_ms, time.monotonic())
        self.read_at = time.monotonic()
        for name, model in outside.items():
            statuses[name], self._heartbeats[name] = model.status, (0, self.read_at)
            self._loads.setdefault(name, ProviderLoad(model.context_pages))
        for name, pages in zip(ids, held, strict=True):
            if name in statuses:
                _apply_held(name, self._loads.setdefault(name, ReplicaLoad()), pages)
        read = [statuses[name] for name in ids if name in statuses]
        await self._refresh_residency(read)
        self._index(statuses, read)  # no await from here on: the pools and their replicas' state change together
        for listener in self._on_refresh:
            listener()

    def _index(self, statuses: Mapping[str, ReplicaStatus], read: Iterable[ReplicaStatus]) -> None:
        """Bring the pools up to date with what was read, and with which replicas there are now."""
        known: dict[str, Any]
        for known in (self._heartbeats, self._loads, self._resident):
            for gone in known.keys() - statuses.keys():
                del known[gone]
        for name in self._candidates.keys() - statuses.keys():
            self._remove(self._candidates.pop(name))
        for status in read:
            before = self._candidates.get(status.id)
            candidate = Candidate(status, self._loads[status.id], self._resident_on(status))
            self._candidates[status.id] = candidate
            if before is not None and _group(before.status) != _group(status):
                self._remove(before)
            self._pools.setdefault(status.base_model, CandidatePool()).put(candidate)
        self._pages_total, self._pages_of_pools, self._block_tokens = {}, {}, {}
        for base_model, pool in self._pools.items():
            pool.sort_by_room()
            pages = self._pages_of_pools[base_model] = Counter[str]()
            for candidate in pool:
                pages[candidate.status.pool] += candidate.status.pages_total
            self._pages_total[base_model] = pages.total()
            self._block_tokens[base_model] = max(candidate.status.block_tokens for candidate in pool)

    def _remove(self, candidate: Candidate) -> None:
        pool = self._pools[candidate.status.base_model]
        pool.remove(candidate)
        if next(iter(pool), None) is None:
            del self._pools[candidate.status.base_model]

    async def refresh_held(self, base_model: str) -> None:
        """Read the held pages of some replicas of a base model, of others the next time, and the other gateways'
        backlogs. Raises redis.RedisError.
        """
        pool = self.pool(base_model)
        first = self._held_next % max(1, len(pool))
        self._held_next = first + _HELD_AT_ONCE_MAX
        batch = (pool[first:] + pool[:first])[:_HELD_AT_ONCE_MAX]
        async with self._redis.pipeline(transaction=False) as pipe:
            sent = self.peers.add_exchange(pipe, (base_model,))
            for candidate in batch:
                pipe.hget(redis_keys.replica_held_pages(candidate.status.id), "total")
            replies = await pipe.execute()
        for candidate, held in zip(batch, replies[sent.commands :], strict=True):
            _apply_held(candidate.status.id, candidate.load, held)
        self.peers.apply(sent, replies[: sent.commands])

    async def _read(self, ids: list[str]) -> tuple[list[str], list[Any], list[Any]]:
        """The ids of all replicas, sorted (Redis has them in the order of their heartbeats), and heartbeats and held
        pages of the given ones, in their order. Applies the other gateways' backlogs as well.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(redis_keys.REPLICAS, 0, -1)
            self.peers.add_peers_query(pipe)
            sent = self.peers.add_exchange(pipe, self._pools)
            for name in ids:
                pipe.get(redis_keys.replica(name))
            for name in ids:
                pipe.hget(redis_keys.replica_held_pages(name), "total")
            names, peers, *replies = await pipe.execute()
        self.peers.apply_peers(peers)
        self.peers.apply(sent, replies[: sent.commands])
        replies = replies[sent.commands :]
        return sorted(_text(name) for name in names), replies[: len(ids)], replies[len(ids) :]

    async def _refresh_residency(self, read: Iterable[ReplicaStatus]) -> None:
        changed = [
            status
            for status in read
            if status.residency_version and _seen(status) != self._resident.get(status.id, (None,))[0]
        ]
        if not changed:
            return
        values = await self._redis.mget([redis_keys.replica_residency(status.id) for status in changed])
        for status, value in zip(changed, values, strict=True):
            if value is None:
                continue
            try:
                residency = _residency.decode(value)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                _log.error("replica residency unreadable", replica=status.id, error=str(error))
                continue
            # Stored under its own version: one newer than the status stays, an older one is read again.
            self._resident[status.id] = ((residency.boot_id, residency.version), Resident.of(residency))

    def _resident_on(self, status: ReplicaStatus) -> Resident:
        """The residency of a replica; empty if the last one read belongs to an earlier boot of its engine."""
        seen, resident = self._resident.get(status.id, (("", 0), NOTHING_RESIDENT))
        return resident if seen[0] == status.boot_id else NOTHING_RESIDENT


def _apply_held(replica_id: str, load: ReplicaLoad, reply: Any) -> None:
    """Apply a replica's held pages as Redis has them. A value that is no number is ignored, and the last one stays."""
    try:
        load.held_pages = int(reply or 0)
    except ValueError:
        _log.error("held pages unreadable", replica=replica_id, reply=repr(reply))


def _group(status: ReplicaStatus) -> tuple[str, int]:
    return status.base_model, status.rank_max


def _seen(status: ReplicaStatus) -> _Seen:
    return status.boot_id, status.residency_version


def _text(name: object) -> str:
    """A member of a sorted set. This client always returns bytes, which redis-py's types do not express."""
    assert isinstance(name, bytes)
    return name.decode(errors="replace")
