"""Quota slices: reservations made in advance, so that plans that allow it are served while Redis does not answer. Each
recent caller has a few, and each slice is good for one request.

A slice is an ordinary reservation at every level, so what all gateways together hold and spend stays within the limits;
the request that spends a slice settles it. Fails closed: a caller without slices left is not admitted.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from redis.exceptions import RedisError

from core import kv_pages
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.quota.allowance import Allowance, Costs
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.quota.reservation import ReservationRequest, Reservations, Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.settler import Settler

_log = structlog.get_logger()
_NO_REPLICA: Final = "slices"
"""Not a replica: pages are held on a replica only once a request runs there, and then by its engine."""
_UNBOUNDED: Final = 1 << 50
_INTERVAL_S: Final = 1.0
_LEASE_MARGIN: Final = 4 / 3  # times what a request may need of a lease: the slice waits for its request in the rest
_RENEW_AT: Final = 1 / 8  # of the lease: an older slice is renewed
_SPEND_UNTIL: Final = 1 / 4  # of the lease: an older slice is not spent, since it must not expire under its request


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSlice:
    """One reservation that waits for its request. Its lease ends no earlier than one lease after
    ``renewed_at`` (monotonic).
    """

    request_id: str
    tokens: int
    pages: int
    nanos: int
    gpu_us: int
    renewed_at: float


@dataclass(slots=True)
class _Caller:
    allowance: Allowance
    seen_at: float
    slices: deque[QuotaSlice] = field(default_factory=deque)


class QuotaSlices:
    """The slices of one gateway process."""

    def __init__(
        self, reservations: Reservations, settler: Settler, settings: GatewaySettings, *, lease_s: float
    ) -> None:
        """``reservations`` must make leases of ``lease_s``."""
        self._reservations = reservations
        self._lease_s = lease_s
        self._settler = settler
        self._settings = settings
        self._callers: dict[tuple[str, ...], _Caller] = {}

    def record(self, request: InferenceRequest, allowance: Allowance) -> None:
        """A request was admitted: keep slices ready for its caller's next requests, if the plan says so."""
        if request.limits.when_quota_is_unavailable != "slice":
            return
        key = _caller_key(allowance)
        if caller := self._callers.get(key):
            caller.allowance, caller.seen_at = allowance, time.monotonic()
        elif len(self._callers) < self._settings.quota_slice_callers_max:
            self._callers[key] = _Caller(allowance, time.monotonic())

    def spend(self, request: InferenceRequest, allowance: Allowance, block_tokens: int) -> ReservationResult | None:
        """A slice for this request, as the answer of a reservation; None where no slice covers it."""
        if request.limits.when_quota_is_unavailable != "slice":
            return None
        caller = self._callers.get(_caller_key(allowance))
        if caller is None:
            return None
        oldest = time.monotonic() - _SPEND_UNTIL * self._lease_s
        for each in caller.slices:
            granted = _granted(request, allowance.costs, each, block_tokens)
            if granted is not None and each.renewed_at >= oldest:
                caller.slices.remove(each)
                metrics.QUOTA_SLICES.dec()
                metrics.QUOTA_SLICE_REQUESTS.inc()
                return ReservationResult(
                    blocked_by="", level="", wait_us=0, limit=0, remaining=0, fits=granted, max_tokens=granted,
                    pages=each.pages, requests_limit=-1, requests_remaining=-1, requests_reset_us=0, tokens_limit=-1,
                    tokens_remaining=-1, tokens_reset_us=0, replica_pages_held=0, slice_id=each.request_id,
                )  # fmt: skip
        return None

    async def run_forever(self) -> None:
        """Reserve, renew and give back slices until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                async with asyncio.timeout(_RENEW_AT * self._lease_s):
                    await self.run_once()
            except (RedisError, OSError) as error:
                _log.info("quota slices not maintained", callers=len(self._callers), error=repr(error))

    async def run_once(self) -> None:
        """Give back the slices of idle callers; renew and complete those of the others. Raises redis.RedisError."""
        for key, caller in list(self._callers.items()):
            if time.monotonic() - caller.seen_at > self._settings.quota_slice_idle_s:
                self._give_back(self._callers.pop(key))
                continue
            await self._renew(caller)
            while len(caller.slices) < self._settings.quota_slice_requests:
                if not await self._reserve(caller):
                    break

    def close(self) -> None:
        """Give all slices back, with the last settlements."""
        for caller in self._callers.values():
            self._give_back(caller)
        self._callers.clear()

    async def _reserve(self, caller: _Caller) -> bool:
        """Add one slice; False where the caller's limits have no room for it."""
        allowance, tokens, started = caller.allowance, self._settings.quota_slice_tokens, time.monotonic()
        reservation_request = ReservationRequest(
            request_id=new_id("req"), prompts=(0,), max_tokens=tokens, min_tokens=tokens,
            block_tokens=kv_pages.PAGE_TOKENS,
        )  # fmt: skip
        try:
            verdict = await self._reservations.reserve(
                reservation_request, allowance, replica_id=_NO_REPLICA, replica_pages_max=_UNBOUNDED
            )
        except BaseException:
            # The script may have run although its answer did not arrive.
            self._return(allowance.tenant_id, reservation_request.request_id)
            raise
        if verdict.blocked_by:
            return False
        nanos = tokens * allowance.costs.output_nanos + verdict.pages * allowance.costs.page_nanos
        caller.slices.append(
            QuotaSlice(
                request_id=reservation_request.request_id,
                tokens=tokens,
                pages=verdict.pages,
                nanos=nanos,
                gpu_us=tokens * allowance.costs.output_gpu_us,
                renewed_at=started,
            )
        )
        metrics.QUOTA_SLICES.inc()
        return True

    async def _renew(self, caller: _Caller) -> None:
        """Renew a caller's slices. If Redis has lost one, it may have lost any of them: all are given back."""
        now = time.monotonic()
        if all(now - each.renewed_at < _RENEW_AT * self._lease_s for each in caller.slices):
            return
        ids = {each.request_id for each in caller.slices}
        renewed = await self._reservations.renew({(caller.allowance.tenant_id, _NO_REPLICA): dict.fromkeys(ids)})
        if renewed.missing:
            self._give_back(caller)
            return
        caller.slices = deque(
            replace(each, renewed_at=now) if each.request_id in ids else each for each in caller.slices
        )

    def _give_back(self, caller: _Caller) -> None:
        while caller.slices:
            metrics.QUOTA_SLICES.dec()
            self._return(caller.allowance.tenant_id, caller.slices.popleft().request_id)

    def _return(self, tenant_id: str, request_id: str) -> None:
        self._settler.settle_later(Settlement(request_id=request_id, tenant_id=tenant_id, replica_id=_NO_REPLICA))


def lease_s(*, heartbeat_lease_s: float, longest_s: float) -> float:
    """A lease that covers a slice's request: Redis may be silent for ``heartbeat_lease_s`` before the request arrives,
    and then for as long as the request runs. It is not longer, because the slices of a gateway that dies stay reserved
    until their leases expire.
    """
    return _LEASE_MARGIN * (heartbeat_lease_s + longest_s)


def _caller_key(allowance: Allowance) -> tuple[str, ...]:
    return tuple([level.quota for level in allowance.levels])


def _granted(request: InferenceRequest, costs: Costs, each: QuotaSlice, block_tokens: int) -> int | None:
    """The part of the requested max_tokens that a slice covers; None where that is below the request's minimum."""
    input_tokens, sequences = request.input_tokens, request.sequences
    for max_tokens in (min(request.max_tokens, (each.tokens - input_tokens) // sequences), request.min_tokens):
        output_tokens, pages = sequences * max_tokens, request.pages(block_tokens, max_tokens)
        nanos = input_tokens * costs.input_nanos + output_tokens * costs.output_nanos + pages * costs.page_nanos
        gpu_us = input_tokens * costs.input_gpu_us + output_tokens * costs.output_gpu_us
        needs = input_tokens + output_tokens, pages, nanos, gpu_us
        has = each.tokens, each.pages, each.nanos, each.gpu_us
        if max_tokens >= request.min_tokens and all(need <= most for need, most in zip(needs, has, strict=True)):
            return max_tokens
    return None
