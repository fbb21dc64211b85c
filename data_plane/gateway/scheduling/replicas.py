"""The live replicas, from their heartbeats in Redis, with the adapters on each and the pages that reservations hold.
placement.py decides which of them suits a request.

A replica is dropped when its status expires in Redis, or when its heartbeat has not changed for too long by this
process's own clock. While heartbeats cannot be read, fresh replicas stay fresh for as long as a gateway may serve
without Redis. Residency is advice: when it cannot be read, requests are placed without it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.replicas import ReplicaStatus, Residency, read_status
from core.kv_pages import PAGE_TOKENS
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import NOTHING_RESIDENT, Candidate, Resident
from data_plane.gateway.scheduling.replica_load import ReplicaLoad

_log = structlog.get_logger()
_residency = msgspec.json.Decoder(Residency)
_HELD_AT_ONCE_MAX = 32
_Seen = tuple[str, int]  # boot id and residency version


def no_replicas(_adapter: str) -> frozenset[str]:
    """No replica has failed to load this adapter."""
    return frozenset()


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
    ) -> None:
        """``allows`` says whether requests may be sent to a replica, ``failed_by`` which replicas recently failed to
        load an adapter.
        """
        self._redis = redis
        self.peers = peers
        self._allows = allows
        self.failed_by = failed_by
        self._poll_s = poll_ms / 1000
        self._stale_s = stale_s
        self._ids: list[str] = []
        self._statuses: dict[str, ReplicaStatus] = {}
        self._heartbeats: dict[str, tuple[int, float]] = {}  # each heartbeat, and when this process first saw it
        self._loads: dict[str, ReplicaLoad] = {}
        self._resident: dict[str, tuple[_Seen, Resident]] = {}
        self._pools: dict[str, list[Candidate]] = {}  # by base model
        self._pages_total: dict[str, int] = {}
        self._block_tokens: dict[str, int] = {}
        self._on_refresh: list[Callable[[], None]] = []
        self.read_at = 0.0  # by the monotonic clock
        self.reachable = False

    def alive(self, base_model: str) -> list[Candidate]:
        """Replicas of a base model with a fresh heartbeat and a circuit that passes requests."""
        oldest = max(self.read_at, time.monotonic() - redis_keys.GATEWAYS_LEASE_S_MAX) - self._stale_s
        return [
            candidate
            for candidate in self.pool(base_model)
            if self._heartbeats[candidate.status.id][1] >= oldest and self._allows(candidate.status)
        ]

    def pool(self, base_model: str) -> Sequence[Candidate]:
        """All replicas of a base model, including those that take no requests now."""
        return self._pools.get(base_model, ())

    def counted_tokens(self, replica: ReplicaStatus) -> int | None:
        """The tokens that an engine has counted since its start, by its last heartbeat; None when it has none now."""
        status = self._statuses.get(replica.id)
        return None if status is None or status.boot_id != replica.boot_id else status.counted_tokens

    def pages_total(self, base_model: str) -> int:
        """KV pages of all replicas of a base model."""
        return self._pages_total.get(base_model, 0)

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
        """Read all heartbeats and held pages once, and the residency of replicas where it has changed. Raises
        redis.RedisError.
        """
        ids = self._ids
        found, values, held = await self._read(ids)
        if found != ids:
            self._ids = ids = found
            _, values, held = await self._read(ids)
        statuses: dict[str, ReplicaStatus] = {}
        for value in values:
            if value is None:
                continue  # the status has expired: the agent has stopped
            status = read_status(value)
            if status is None:
                continue
            statuses[status.id] = status
            if self._heartbeats.get(status.id, (0, 0.0))[0] != status.heartbeat_ms:
                self._heartbeats[status.id] = (status.heartbeat_ms, time.monotonic())
        self._statuses, self.read_at = statuses, time.monotonic()
        for name, pages in zip(ids, held, strict=True):
            if name in statuses:
                _apply_held(name, self._loads.setdefault(name, ReplicaLoad()), pages)
        await self._refresh_residency()
        # No await from here on: the pools and the state of their replicas change together.
        known: dict[str, Any]
        for known in (self._heartbeats, self._loads, self._resident):
            for gone in known.keys() - statuses.keys():
                del known[gone]
        self._pools = {}
        for status in statuses.values():
            candidate = Candidate(status, self._loads[status.id], self._resident_on(status))
            self._pools.setdefault(status.base_model, []).append(candidate)
        self._pages_total = {
            base_model: sum(candidate.status.pages_total for candidate in pool)
            for base_model, pool in self._pools.items()
        }
        self._block_tokens = {
            base_model: max(candidate.status.block_tokens for candidate in pool)
            for base_model, pool in self._pools.items()
        }
        for listener in self._on_refresh:
            listener()

    async def refresh_held(self, base_model: str) -> None:
        """Read the held pages of some replicas of a base model, of others the next time, and the other gateways'
        backlogs. Raises redis.RedisError.
        """
        pool = self._pools.get(base_model, [])
        batch, self._pools[base_model] = pool[:_HELD_AT_ONCE_MAX], pool[_HELD_AT_ONCE_MAX:] + pool[:_HELD_AT_ONCE_MAX]
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

    async def _refresh_residency(self) -> None:
        changed = [
            status
            for status in self._statuses.values()
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


def _seen(status: ReplicaStatus) -> _Seen:
    return status.boot_id, status.residency_version


def _text(name: object) -> str:
    """A member of a sorted set. This client always returns bytes, which redis-py's types do not express."""
    assert isinstance(name, bytes)
    return name.decode(errors="replace")
