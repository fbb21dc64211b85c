"""Reserve, renew, move, settle, restore and sweep quotas, each by one atomic Lua script in Redis (``scripts/``).

Fails closed: without an answer in time, no request is admitted. The limits of a request are computed in ``allowance``.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.request_log import RequestDetails
from core.contracts.usage import UsageEvent
from data_plane.gateway.quota.allowance import Allowance, Taken
from data_plane.gateway.quota.consumption import NOTHING_USED, Used
from data_plane.gateway.quota.lua_script import Script
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.state.redis_connection import Argument, RedisConnection

RENEWED_AT_ONCE_MAX: Final = 200  # requests in one script run; all other Redis clients wait while a script runs
_ENCODER: Final = msgspec.json.Encoder()


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a request may use, on an engine with blocks of ``block_tokens``. Each sequence has
    its number of prompt tokens in ``prompts`` and up to ``max_tokens``. Where ``max_tokens`` do not fit, fewer may be
    granted, but at least ``min_tokens``.
    """

    request_id: str
    prompts: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    block_tokens: int


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request. Without an event nothing is billed, and the whole reservation is refunded. ``cached_saves``
    is the discount on each prompt token that came from a prefix cache. ``details`` are for the request log; None for
    what is no request of its own.
    """

    request_id: str
    tenant_id: str
    replica_id: str
    used: Used = NOTHING_USED
    cached_saves: Used = NOTHING_USED
    event: UsageEvent | None = None
    details: RequestDetails | None = RequestDetails()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a running request so far. Its event is billed if the request's lease expires before it settles."""

    event: UsageEvent
    used: Used


class QuotasForgotten(RedisError):
    """Redis answers but has lost the usage counters. Callers fail as they do when Redis is unreachable."""


class Settled(NamedTuple):
    """The result of a settlement. ``first`` says whether it was the first one of its request; the truth value is the
    same. ``entry`` is the usage stream's entry that billing reads: this settlement's or, where the request had settled
    before, the newest one. It is empty where nothing is billed.
    """

    first: bool
    entry: bytes

    def __bool__(self) -> bool:
        return self.first


class Moved(NamedTuple):
    """The result of a move: whether the pages fitted, which is its truth value, and the pages that are held on the new
    replica now.
    """

    fitted: bool
    replica_pages_held: int

    def __bool__(self) -> bool:
        return self.fitted


class Renewed(NamedTuple):
    """The result of a renewal: the number of reservations that do not exist (for any reason), the ids of the requests
    whose leases expired, and the ids of those that Redis does not know.
    """

    missing: int
    expired: list[str]
    unknown: list[str]


class Reservations:
    """The quota scripts on one Redis. Every method raises redis.RedisError where the server cannot be reached. The
    request log keeps ``request_log_max`` entries until the worker has read them; 0 is no log.
    """

    def __init__(
        self, redis: RedisConnection, *, lease_s: float, settled_marker_s: int, request_log_max: int = 0
    ) -> None:
        self._request_log_max = request_log_max
        self._redis = redis
        self._lease_ms = int(lease_s * 1000)
        self._marker_s = settled_marker_s
        self._reserve = Script("reserve")
        self._settle = Script("settle")
        self._renew = Script("renew")
        self._move = Script("move")
        self._sweep = Script("sweep")
        self._restore = Script("restore")

    async def reserve(
        self,
        request: ReservationRequest,
        allowance: Allowance,
        *,
        replica_id: str,
        replica_pages_max: int,
        within_s: float | None = None,
    ) -> ReservationResult:
        """Reserve the maximum of a request at every level, or nothing. With ``replica_pages_max`` -1 the script only
        checks the caller's limits. A repeated request first gives back its earlier reservation. Raises QuotasForgotten.
        """
        tenant_id, costs = allowance.tenant_id, allowance.costs
        reply = await self._reserve(
            self._redis,
            (
                redis_keys.tenant_leases(tenant_id),
                redis_keys.reservation(tenant_id, request.request_id),
                redis_keys.settled(tenant_id, request.request_id),
                redis_keys.LEASED_TENANTS,
                redis_keys.USAGE_STREAM,
                redis_keys.replica_held(replica_id),
                redis_keys.replica_held_pages(replica_id),
                redis_keys.QUOTAS_REBUILT,
                redis_keys.REQUEST_LOG,
                *(level.quota for level in allowance.levels),
            ),
            (
                request.request_id,
                tenant_id,
                self._lease_ms,
                self._marker_s,
                redis_keys.reservation(tenant_id, ""),
                redis_keys.settled(tenant_id, ""),
                " ".join(map(str, request.prompts)),
                request.max_tokens,
                request.min_tokens,
                request.block_tokens,
                replica_pages_max,
                costs.input_nanos,
                costs.output_nanos,
                costs.page_nanos,
                self._request_log_max,
                costs.input_gpu_us,
                costs.output_gpu_us,
                *(limit for level in allowance.levels for limit in level.arguments),
            ),
            within_s=within_s,
        )
        if reply[0] == b"forgotten":
            raise QuotasForgotten("Redis lost the usage counters; billing has not restored them yet")
        return ReservationResult.from_reply(reply, [level.name for level in allowance.levels])

    async def move(
        self,
        request_id: str,
        pages: int,
        *,
        tenant_id: str,
        old_replica_id: str,
        replica_id: str,
        replica_pages_max: int,
    ) -> Moved:
        """Exchange the KV pages held on one replica for pages on another. Where they do not fit, nothing changes."""
        fitted, held = await self._move(
            self._redis,
            (
                redis_keys.replica_held(old_replica_id),
                redis_keys.replica_held_pages(old_replica_id),
                redis_keys.replica_held(replica_id),
                redis_keys.replica_held_pages(replica_id),
                redis_keys.reservation(tenant_id, request_id),
            ),
            (request_id, self._lease_ms, pages, replica_pages_max),
        )
        return Moved(bool(fitted), held)

    async def settle(self, settlement: Settlement, *, within_s: float | None = None) -> Settled:
        """End a reservation. Idempotent on the request id."""
        tenant_id, request_id = settlement.tenant_id, settlement.request_id
        event, used = settlement.event, settlement.used
        first, entry = await self._settle(
            self._redis,
            (
                redis_keys.settled(tenant_id, request_id),
                redis_keys.tenant_leases(tenant_id),
                redis_keys.reservation(tenant_id, request_id),
                redis_keys.USAGE_STREAM,
                redis_keys.replica_held(settlement.replica_id),
                redis_keys.replica_held_pages(settlement.replica_id),
                redis_keys.tenant_quota(tenant_id),
                redis_keys.key_quota(tenant_id, "" if event is None else event.key_id),
                redis_keys.REQUEST_LOG,
            ),
            (
                request_id,
                self._marker_s,
                used.input_tokens,
                used.output_tokens,
                used.cost_nanos,
                b"" if event is None else _ENCODER.encode(event),
                settlement.cached_saves.input_tokens,
                settlement.cached_saves.cost_nanos,
                _ENCODER.encode(settlement.details),
                self._request_log_max if settlement.details is not None else 0,
                used.gpu_us,
                settlement.cached_saves.gpu_us,
            ),
            within_s=within_s,
        )
        return Settled(bool(first), entry)

    async def bill(self, event: UsageEvent, details: RequestDetails | None) -> bytes:
        """Send the event of a request whose settled marker may have expired. Billing ignores an event that it has
        recorded before, readers of the request log a row that is there twice, and no quota counts this one. Returns the
        entry of the usage stream.
        """
        if self._request_log_max and details is not None:
            await self._redis.call(
                "XADD", redis_keys.REQUEST_LOG, "MAXLEN", "~", self._request_log_max, "*",
                "event", _ENCODER.encode(event), "details", _ENCODER.encode(details),
            )  # fmt: skip
        entry: bytes = await self._redis.call("XADD", redis_keys.USAGE_STREAM, "*", "event", _ENCODER.encode(event))
        return entry

    async def renew(self, groups: Mapping[tuple[str, str], Mapping[str, Checkpoint | None]]) -> Renewed:
        """Extend leases and record checkpoints. ``groups`` maps (tenant id, replica id) to request ids, each with its
        new checkpoint, or with None where the last one is still complete.
        """
        replies = await asyncio.gather(
            *(
                self._renew(
                    self._redis,
                    (redis_keys.tenant_leases(tenant_id), redis_keys.replica_held(replica_id)),
                    (self._lease_ms, redis_keys.reservation(tenant_id, ""), redis_keys.settled(tenant_id, ""), *part),
                )
                for (tenant_id, replica_id), requests in groups.items()
                for part in _parts(requests)
            )
        )
        return Renewed(
            sum(missing for missing, *_ in replies),
            [each.decode() for _, expired, _ in replies for each in expired],
            [each.decode() for *_, unknown in replies for each in unknown],
        )

    async def restore(self, request_id: str, taken: Taken, *, replica_id: str) -> bool:
        """Reserve again for a running request that Redis lost. Returns False where the reservation exists or ended."""
        tenant_id = taken.tenant_id
        return bool(
            await self._restore(
                self._redis,
                (
                    redis_keys.tenant_leases(tenant_id),
                    redis_keys.reservation(tenant_id, request_id),
                    redis_keys.settled(tenant_id, request_id),
                    redis_keys.LEASED_TENANTS,
                    redis_keys.replica_held(replica_id),
                    redis_keys.replica_held_pages(replica_id),
                    *taken.levels,
                ),
                (
                    request_id, tenant_id, self._lease_ms,
                    taken.pages, taken.input_tokens, taken.output_tokens, taken.nanos, taken.gpu_us,
                ),
            )
        )  # fmt: skip

    async def sweep(self, tenant_id: str) -> int:
        """End a tenant's reservations whose leases expired, each by its last checkpoint, and record in
        ``LEASED_TENANTS`` when the next lease expires. Returns how many it ended. One call ends a bounded number, so
        call again until it returns 0.
        """
        return int(
            await self._sweep(
                self._redis,
                (
                    redis_keys.tenant_leases(tenant_id),
                    redis_keys.LEASED_TENANTS,
                    redis_keys.USAGE_STREAM,
                    redis_keys.REQUEST_LOG,
                ),
                (
                    tenant_id,
                    self._marker_s,
                    redis_keys.reservation(tenant_id, ""),
                    redis_keys.settled(tenant_id, ""),
                    self._request_log_max,
                ),
            )
        )


def _parts(requests: Mapping[str, Checkpoint | None]) -> list[list[Argument]]:
    """The arguments of renew.lua for each request, in batches of at most ``RENEWED_AT_ONCE_MAX`` requests."""
    items = iter(requests.items())
    parts = []
    while batch := list(islice(items, RENEWED_AT_ONCE_MAX)):
        part: list[Argument] = []
        for request_id, checkpoint in batch:
            if checkpoint is None:
                part += [request_id, "", 0, 0, 0, 0]
            else:
                used = checkpoint.used
                encoded = _ENCODER.encode(checkpoint.event)
                part += [request_id, encoded, used.input_tokens, used.output_tokens, used.cost_nanos, used.gpu_us]
        parts.append(part)
    return parts
