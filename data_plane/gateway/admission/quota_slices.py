"""Shares of quotas taken beforehand, for plans that are served while Redis does not answer: a few reservations for each
caller of late, each good for one request.

A slice is a reservation as any other, at every level, so what all gateways together hold and spend stays within the
limits; the request that spends it settles it. Fails closed: with all of its slices spent, a caller is not admitted.
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
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.quota.allowance import Allowance
from data_plane.gateway.quota.rate_limit_response import Verdict
from data_plane.gateway.quota.reservation import Ask, Reservations, Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.settler import Settler

_log = structlog.get_logger()
_NOWHERE: Final = "slices"  # no replica: pages are held of one only once a request goes there, and then by its engine
_UNBOUNDED: Final = 1 << 50
_LOOK_S: Final = 1.0
_SPARE: Final = 4 / 3  # of what a request may need of a lease: within the rest a slice waits for its request
_RENEW_AT: Final = 1 / 8  # of the lease's length: a slice older than that is renewed
_SPEND_UNTIL: Final = 1 / 4  # and one older than that is not spent: it must not run out under its request


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSlice:
    """One reservation that waits for its request, held at least until a lease after ``renewed_at`` (monotonic)."""

    request_id: str
    tokens: int
    pages: int
    nanos: int
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
        """``reservations`` with leases of ``lease_s``."""
        self._reservations = reservations
        self._lease_s = lease_s
        self._settler = settler
        self._settings = settings
        self._callers: dict[tuple[str, ...], _Caller] = {}

    def note(self, demand: Demand) -> None:
        """A request was admitted: have slices ready for its caller's next, if the plan says so."""
        if demand.limits.when_quota_is_unavailable != "slice":
            return
        who = _who(demand.allowance)
        if caller := self._callers.get(who):
            caller.allowance, caller.seen_at = demand.allowance, time.monotonic()
        elif len(self._callers) < self._settings.quota_slice_callers_max:
            self._callers[who] = _Caller(demand.allowance, time.monotonic())

    def spend(self, demand: Demand, block_tokens: int) -> Verdict | None:
        """A slice for this request, as the answer of a reservation; None where there is none that covers it."""
        caller = self._callers.get(_who(demand.allowance))
        if caller is None or demand.limits.when_quota_is_unavailable != "slice":
            return None
        oldest = time.monotonic() - _SPEND_UNTIL * self._lease_s
        for each in caller.slices:
            granted = _granted(demand, each, block_tokens)
            if granted is not None and each.renewed_at >= oldest:
                caller.slices.remove(each)
                metrics.QUOTA_SLICE_REQUESTS.inc()
                return Verdict(
                    "", "", 0, 0, 0, granted, granted, each.pages, -1, -1, 0, -1, -1, 0, 0, slice_id=each.request_id
                )  # fmt: skip
        return None

    async def run_forever(self) -> None:
        """Take, renew and give back, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                async with asyncio.timeout(_RENEW_AT * self._lease_s):
                    await self.look()
            except (RedisError, OSError) as error:
                _log.info("slices cannot be looked after", callers=len(self._callers), error=repr(error))

    async def look(self) -> None:
        """Once: give back what nobody asks for any more, and see to the rest. Raises redis.RedisError."""
        for who, caller in list(self._callers.items()):
            if time.monotonic() - caller.seen_at > self._settings.quota_slice_idle_s:
                self._give_back(self._callers.pop(who))
                continue
            await self._renew(caller)
            while len(caller.slices) < self._settings.quota_slice_requests:
                if not await self._take(caller):
                    break

    def close(self) -> None:
        """Give everything back, with the last settlements."""
        for caller in self._callers.values():
            self._give_back(caller)
        self._callers.clear()

    async def _take(self, caller: _Caller) -> bool:
        """One slice more; False where the caller's limits have no room for it."""
        allowance, tokens, began = caller.allowance, self._settings.quota_slice_tokens, time.monotonic()
        ask = Ask(
            request_id=new_id("req"), sequences=1, prompt_tokens=0, max_tokens=tokens, min_tokens=tokens,
            block_tokens=kv_pages.PAGE_TOKENS,
        )  # fmt: skip
        try:
            verdict = await self._reservations.reserve(
                ask, allowance, replica_id=_NOWHERE, replica_pages_max=_UNBOUNDED
            )
        except BaseException:
            # The script may have run although its answer did not come.
            self._return(allowance.tenant_id, ask.request_id)
            raise
        if verdict.blocked_by:
            return False
        nanos = tokens * allowance.costs.output_nanos + verdict.pages * allowance.costs.page_nanos
        caller.slices.append(
            QuotaSlice(request_id=ask.request_id, tokens=tokens, pages=verdict.pages, nanos=nanos, renewed_at=began)
        )
        return True

    async def _renew(self, caller: _Caller) -> None:
        """Where one is gone, none of the caller's is known to be there: all are given back."""
        began = time.monotonic()
        if all(began - each.renewed_at < _RENEW_AT * self._lease_s for each in caller.slices):
            return
        ids = {each.request_id for each in caller.slices}
        renewed = await self._reservations.renew({(caller.allowance.tenant_id, _NOWHERE): dict.fromkeys(ids)})
        if renewed.missing:
            self._give_back(caller)
            return
        caller.slices = deque(
            replace(each, renewed_at=began) if each.request_id in ids else each for each in caller.slices
        )

    def _give_back(self, caller: _Caller) -> None:
        while caller.slices:
            self._return(caller.allowance.tenant_id, caller.slices.popleft().request_id)

    def _return(self, tenant_id: str, request_id: str) -> None:
        self._settler.settle_later(Settlement(request_id=request_id, tenant_id=tenant_id, replica_id=_NOWHERE))


def lease_s(*, heartbeat_lease_s: float, longest_s: float) -> float:
    """The lease of a slice, which covers its requests: Redis may be silent for ``heartbeat_lease_s`` before a request
    arrives, and then for as long as it runs. Not longer: a gateway that dies takes its slices with it until then.
    """
    return _SPARE * (heartbeat_lease_s + longest_s)


def _who(allowance: Allowance) -> tuple[str, ...]:
    return tuple(level.quota for level in allowance.levels)


def _granted(demand: Demand, each: QuotaSlice, block_tokens: int) -> int | None:
    """The max_tokens that a slice covers of what is asked for; None where that is too little."""
    costs = demand.allowance.costs
    for max_tokens in (
        min(demand.max_tokens, each.tokens // demand.sequences - demand.prompt_tokens),
        demand.min_tokens,
    ):
        tokens = demand.sequences * (demand.prompt_tokens + max_tokens)
        pages = demand.sequences * kv_pages.pages_for(demand.prompt_tokens + max_tokens, block_tokens)
        nanos = demand.sequences * (demand.prompt_tokens * costs.input_nanos + max_tokens * costs.output_nanos)
        nanos += pages * costs.page_nanos
        fits = tokens <= each.tokens and pages <= each.pages and nanos <= each.nanos
        if fits and max_tokens >= demand.min_tokens:
            return max_tokens
    return None
