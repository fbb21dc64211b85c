"""Charges one request of a caller's minute for an answer that no engine generates: a stored answer that is sent again.

Only the request rate is charged: no tokens, money or concurrency. Fails closed.
"""

import asyncio
from typing import Final

from redis.exceptions import RedisError

from core import kv_pages
from core.errors import Unavailable
from data_plane.gateway.quota.allowance import one_request
from data_plane.gateway.quota.rate_limit_response import quota_exceeded
from data_plane.gateway.quota.reservation import ReservationRequest, Reservations, Settlement
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.authenticate import Caller

_NO_REPLICA: Final = "tolls"  # a name in Redis that no replica has
_UNBOUNDED: Final = 1 << 50


class ReplayCharge:
    """Charges replayed answers."""

    def __init__(self, reservations: Reservations, settler: Settler, *, deadline_s: float) -> None:
        self._reservations = reservations
        self._settler = settler
        self._deadline_s = deadline_s

    async def charge(self, caller: Caller, request_id: str) -> None:
        """Raises QuotaExceeded when the minute has no request left, and Unavailable when Redis does not answer in time;
        the concurrency slot that the charge holds for a moment is given back once Redis answers.
        """
        reservation_request = ReservationRequest(
            request_id=request_id, prompts=(0,), max_tokens=0, min_tokens=0,
            block_tokens=kv_pages.PAGE_TOKENS,
        )  # fmt: skip
        allowance = one_request(caller.tenant, caller.key)
        settlement = Settlement(request_id=request_id, tenant_id=allowance.tenant_id, replica_id=_NO_REPLICA)
        try:
            async with asyncio.timeout(self._deadline_s):
                verdict = await self._reservations.reserve(
                    reservation_request, allowance, replica_id=_NO_REPLICA, replica_pages_max=_UNBOUNDED
                )
                if not verdict.blocked_by:
                    await self._reservations.settle(settlement)
        except BaseException as error:
            self._settler.settle_later(settlement)  # the script may have run although its answer did not arrive
            if isinstance(error, RedisError | OSError):  # TimeoutError is an OSError
                raise Unavailable(
                    "Quotas cannot be checked now; try again shortly.", code="quota_unavailable", retry_after_s=1
                ) from error
            raise
        if verdict.blocked_by:
            raise quota_exceeded(verdict, tokens=0)
