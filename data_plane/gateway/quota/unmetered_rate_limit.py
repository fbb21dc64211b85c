"""The rate limit on requests that use no quota: rejected requests, token counts and model lists, per tenant.

The limiter uses GCRA, as reserve.lua does for served requests. Over the limit, the gateway rejects every request of the
tenant right after authentication, which costs little. The state is in this process's memory only, and a restart clears
it; quotas of a plan are in ``reservation``.
"""

import time
from collections import OrderedDict
from typing import Final

from core.errors import TooManyRequests

_BURST_S: Final = 5.0  # seconds of the rate that a tenant may use in one burst
_TENANTS_MAX: Final = 10_000


class UnmeteredRateLimiter:
    """One process's buckets, by tenant id. Over ``_TENANTS_MAX`` tenants, the oldest charge is evicted."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._arrivals: OrderedDict[str, float] = OrderedDict()

    def check(self, tenant_id: str) -> None:
        """Raise TooManyRequests, with the time to wait, where the tenant's bucket is full."""
        over_s = self._arrivals.get(tenant_id, 0.0) - time.monotonic() - _BURST_S
        if over_s > 0:
            raise TooManyRequests(
                f"A tenant may send {self._per_second:g} rejected, token-count or list requests per second. "
                "Fix the rejected requests and poll less often.",
                code="too_many_refusals",
                retry_after_s=over_s,
            )

    def charge(self, tenant_id: str) -> None:
        """Count one request that uses no quota."""
        now = time.monotonic()
        self._arrivals[tenant_id] = max(now, self._arrivals.pop(tenant_id, 0.0)) + 1 / self._per_second
        if len(self._arrivals) > _TENANTS_MAX:
            self._arrivals.popitem(last=False)
