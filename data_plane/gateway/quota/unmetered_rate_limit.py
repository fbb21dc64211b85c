"""What a tenant asks of one gateway process that no limit of its plan counts: what is refused, counting, and listings.

So many a second (GCRA, as reserve.lua has it for requests that are served), and then all of the tenant's requests are
refused at once, for hardly more than it takes to know whose they are. It is in memory alone and asks nobody: a process
that begins anew remembers nothing.
"""

import time
from collections import OrderedDict
from typing import Final

from core.errors import TooManyRequests

_BURST_S: Final = 5.0  # of the rate, which a tenant may use at once
_TENANTS_MAX: Final = 10_000


class Unpaid:
    """The buckets of one process, by tenant."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._arrivals: OrderedDict[str, float] = OrderedDict()

    def check(self, tenant_id: str) -> None:
        """Raises TooManyRequests for a tenant whose bucket is full."""
        over_s = self._arrivals.get(tenant_id, 0.0) - time.monotonic() - _BURST_S
        if over_s > 0:
            raise TooManyRequests(
                f"Requests that are refused, or only count or list, may be {self._per_second:g} a second here, and you "
                "sent more; mend what is refused, and ask for counts and lists less often.",
                code="too_many_refusals",
                retry_after_s=over_s,
            )

    def charge(self, tenant_id: str) -> None:
        """One more such request."""
        now = time.monotonic()
        self._arrivals[tenant_id] = max(now, self._arrivals.pop(tenant_id, 0.0)) + 1 / self._per_second
        if len(self._arrivals) > _TENANTS_MAX:
            self._arrivals.popitem(last=False)
