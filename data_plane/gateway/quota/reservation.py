"""Reserve, renew, move, settle and sweep, each one atomic script in Redis. What a request may take, its caller decides.

Fails closed: without an answer in time nothing is admitted. The scripts are files beside this one.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.usage import UsageEvent
from data_plane.gateway.quota.allowance import Allowance, Taken
from data_plane.gateway.quota.consumption import NOTHING_USED, Used
from data_plane.gateway.quota.lua_script import Script
from data_plane.gateway.quota.rate_limit_response import Verdict
from data_plane.gateway.state.redis_connection import Argument, RedisConnection

RENEWED_AT_ONCE_MAX: Final = 200  # requests in one run of a script, which everybody else waits for
_ENCODER: Final = msgspec.json.Encoder()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request takes at most, on an engine with blocks of ``block_tokens``. Each of its ``sequences`` has the
    prompt and up to ``max_tokens``; where those do not fit, as few as ``min_tokens`` may be granted in their place.
    """

    request_id: str
    sequences: int
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    block_tokens: int


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended. Without an event nothing is billed, and the whole reservation is refunded. ``cached_saves``
    is what each prompt token counts for less where it was cached.
    """

    request_id: str
    tenant_id: str
    replica_id: str
    used: Used = NOTHING_USED
    cached_saves: Used = NOTHING_USED
    event: UsageEvent | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a running request has used so far: the event that is billed if nobody settles it."""

    event: UsageEvent
    used: Used


class QuotasForgotten(RedisError):
    """Redis is there, but does not know what was used this month. Callers fail as if it were away."""


class Settled(NamedTuple):
    """Whether a settlement was the first of its request, as which it is true, and the entry of the usage stream that
    told billing: that one or one before it; empty where nothing is billed.
    """

    first: bool
    entry: bytes

    def __bool__(self) -> bool:
        return self.first


class Renewed(NamedTuple):
    """How many reservations were not there any more, for whatever reason, the requests whose leases had run out, and
    those of which Redis knows nothing.
    """

    missing: int
    expired: list[str]
    unknown: list[str]


class Reservations:
    """The quota scripts over one Redis. Raises redis.RedisError where the server cannot be reached."""

    def __init__(self, line: RedisConnection, *, lease_s: float, settled_marker_s: int) -> None:
        self._line = line
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
        ask: Ask,
        allowance: Allowance,
        *,
        replica_id: str,
        replica_pages_max: int,
        within_s: float | None = None,
    ) -> Verdict:
        """Take what ``ask`` names at every level, or nothing. ``replica_pages_max`` of -1 only asks whether the caller
        may. The same request again gives back first what it took before. Raises QuotasForgotten.
        """
        tenant_id, costs = allowance.tenant_id, allowance.costs
        reply = await self._reserve(
            self._line,
            (
                redis_keys.tenant_leases(tenant_id),
                redis_keys.reservation(tenant_id, ask.request_id),
                redis_keys.settled(tenant_id, ask.request_id),
                redis_keys.LEASED_TENANTS,
                redis_keys.USAGE_STREAM,
                redis_keys.replica_held(replica_id),
                redis_keys.replica_held_pages(replica_id),
                redis_keys.QUOTAS_REBUILT,
                *(level.quota for level in allowance.levels),
            ),
            (
                ask.request_id,
                tenant_id,
                self._lease_ms,
                self._marker_s,
                redis_keys.reservation(tenant_id, ""),
                redis_keys.settled(tenant_id, ""),
                ask.sequences,
                ask.prompt_tokens,
                ask.max_tokens,
                ask.min_tokens,
                ask.block_tokens,
                replica_pages_max,
                costs.input_nanos,
                costs.output_nanos,
                costs.page_nanos,
                *(limit for level in allowance.levels for limit in level.arguments),
            ),
            within_s=within_s,
        )
        verdict, number, *rest = reply
        if verdict == b"forgotten":
            raise QuotasForgotten("Redis lost what was used; billing has yet to give it back")
        return Verdict(verdict.decode(), allowance.levels[number - 1].name if number else "", *rest)

    async def move(
        self,
        request_id: str,
        pages: int,
        *,
        tenant_id: str,
        old_replica_id: str,
        replica_id: str,
        replica_pages_max: int,
    ) -> bool:
        """Exchange the pages held on one replica for pages on another; False where they do not fit."""
        return bool(
            await self._move(
                self._line,
                (
                    redis_keys.replica_held(old_replica_id),
                    redis_keys.replica_held_pages(old_replica_id),
                    redis_keys.replica_held(replica_id),
                    redis_keys.replica_held_pages(replica_id),
                    redis_keys.reservation(tenant_id, request_id),
                ),
                (request_id, self._lease_ms, pages, replica_pages_max),
            )
        )

    async def settle(self, settlement: Settlement, *, within_s: float | None = None) -> Settled:
        """End a reservation. Idempotent on the request id."""
        tenant_id, request_id = settlement.tenant_id, settlement.request_id
        event, used = settlement.event, settlement.used
        first, entry = await self._settle(
            self._line,
            (
                redis_keys.settled(tenant_id, request_id),
                redis_keys.tenant_leases(tenant_id),
                redis_keys.reservation(tenant_id, request_id),
                redis_keys.USAGE_STREAM,
                redis_keys.replica_held(settlement.replica_id),
                redis_keys.replica_held_pages(settlement.replica_id),
                redis_keys.tenant_quota(tenant_id),
                redis_keys.key_quota(tenant_id, "" if event is None else event.key_id),
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
            ),
            within_s=within_s,
        )
        return Settled(bool(first), entry)

    async def bill(self, event: UsageEvent) -> bytes:
        """Tell billing of a request whose marker may be gone; it knows what it has recorded. No quota counts it.
        Returns the entry of the usage stream.
        """
        entry: bytes = await self._line.call("XADD", redis_keys.USAGE_STREAM, "*", "event", _ENCODER.encode(event))
        return entry

    async def renew(self, groups: Mapping[tuple[str, str], Mapping[str, Checkpoint | None]]) -> Renewed:
        """Extend leases, and note what their requests have used: by (tenant, replica), request ids with a checkpoint,
        or None where the last one still says it all.
        """
        replies = await asyncio.gather(
            *(
                self._renew(
                    self._line,
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
        """Hold again what a running request holds and Redis has forgotten; False where it is held, or has ended."""
        tenant_id = taken.tenant_id
        return bool(
            await self._restore(
                self._line,
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
                    taken.pages, taken.input_tokens, taken.output_tokens, taken.nanos,
                ),
            )
        )  # fmt: skip

    async def sweep(self, tenant_id: str) -> int:
        """End a tenant's reservations whose leases ran out, each by its last checkpoint, and note in ``LEASED_TENANTS``
        when the next one does. Returns how many there were: a bounded number, so call again while there are any.
        """
        return int(
            await self._sweep(
                self._line,
                (redis_keys.tenant_leases(tenant_id), redis_keys.LEASED_TENANTS, redis_keys.USAGE_STREAM),
                (tenant_id, self._marker_s, redis_keys.reservation(tenant_id, ""), redis_keys.settled(tenant_id, "")),
            )
        )


def _parts(requests: Mapping[str, Checkpoint | None]) -> list[list[Argument]]:
    """What renew.lua is told of each request, in runs of a bounded length."""
    items = iter(requests.items())
    parts = []
    while batch := list(islice(items, RENEWED_AT_ONCE_MAX)):
        part: list[Argument] = []
        for request_id, checkpoint in batch:
            if checkpoint is None:
                part += [request_id, "", 0, 0, 0]
            else:
                used = checkpoint.used
                encoded = _ENCODER.encode(checkpoint.event)
                part += [request_id, encoded, used.input_tokens, used.output_tokens, used.cost_nanos]
        parts.append(part)
    return parts
