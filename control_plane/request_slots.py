"""Limits on requests: how many run at once, before authentication, of each tenant, of all tenants, and of admins; and
how many a tenant and an address may send per minute.

A tenant whose requests last long leaves all other tenants served, and tenants leave admins served.
"""

import threading
from collections import Counter
from typing import Final, Self

from control_plane import metrics
from core.errors import AppError, TooManyRequests, Unavailable
from core.request_rate import RequestRate

_OPEN: Final = "open"
_TENANTS: Final = "tenants"
_ADMINS: Final = "admins"


class RequestSlots:
    """Counts the running requests of one process. Threads may share it."""

    def __init__(
        self,
        *,
        requests_max: int,
        tenant_requests_max: int,
        admin_requests_max: int,
        tenant_rate: RequestRate,
        address_rate: RequestRate | None,
    ) -> None:
        self._tenant_rate = tenant_rate
        self._address_rate = address_rate
        self._limits = {_OPEN: requests_max, _TENANTS: requests_max, _ADMINS: admin_requests_max}
        self._tenant_requests_max = tenant_requests_max
        self._running: Counter[str] = Counter()
        self._running_by_tenant: Counter[str] = Counter()
        self._guard = threading.Lock()

    def acquire(self, address: str) -> "RequestSlot":
        """A slot for a request from ``address`` whose caller is not known yet. Raises TooManyRequests or
        Unavailable.
        """
        if self._address_rate is not None:
            _require_rate(self._address_rate, address, "address")
        with self._guard:
            self._require_room(_OPEN)
            self._running[_OPEN] += 1
        return RequestSlot(self)

    def move(self, tenant_id: str | None) -> str:
        """Count a request to its tenant (None: to the admins) from now on. Raises TooManyRequests or Unavailable, and
        changes nothing then. Returns the pool.
        """
        pool = _ADMINS if tenant_id is None else _TENANTS
        if tenant_id is not None:
            _require_rate(self._tenant_rate, tenant_id, "tenant")
        with self._guard:
            if tenant_id is not None and self._running_by_tenant[tenant_id] >= self._tenant_requests_max:
                metrics.REFUSED_REQUESTS.labels("tenant").inc()
                raise TooManyRequests(
                    f"At most {self._tenant_requests_max} requests of a tenant run at once. Wait for earlier ones to "
                    "end.",
                    code="too_many_concurrent_requests",
                    retry_after_s=1,
                )
            self._require_room(pool)
            self._running[_OPEN] -= 1
            self._running[pool] += 1
            if tenant_id is not None:
                self._running_by_tenant[tenant_id] += 1
        return pool

    def release(self, pool: str, tenant_id: str | None) -> None:
        """End a request."""
        with self._guard:
            self._running[pool] -= 1
            if tenant_id is not None:
                self._running_by_tenant[tenant_id] -= 1
                if not self._running_by_tenant[tenant_id]:
                    del self._running_by_tenant[tenant_id]

    def _require_room(self, pool: str) -> None:
        if self._running[pool] >= self._limits[pool]:
            metrics.REFUSED_REQUESTS.labels(pool).inc()
            raise _overloaded()


class RequestSlot:
    """One request's place, from its start to its end. ``authenticated`` moves it to its caller's pool, once."""

    def __init__(self, slots: RequestSlots) -> None:
        self._slots = slots
        self._pool = _OPEN
        self._tenant_id: str | None = None

    def authenticated(self, tenant_id: str | None) -> None:
        """Count the request to its tenant, or to the admins where that is None. Raises TooManyRequests or
        Unavailable.
        """
        if self._pool == _OPEN:
            self._pool, self._tenant_id = self._slots.move(tenant_id), tenant_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.release(self._pool, self._tenant_id)


def _require_rate(rate: RequestRate, caller: str, kind: str) -> None:
    if wait_s := rate.charge(caller):
        metrics.REFUSED_REQUESTS.labels(f"{kind}_rate").inc()
        raise TooManyRequests(
            f"This {kind} sends more than {rate.per_minute} requests per minute. Send fewer.",
            code="too_many_requests",
            retry_after_s=wait_s,
        )


def _overloaded() -> AppError:
    return Unavailable("Too many concurrent requests. Try again in a few seconds.", code="overloaded", retry_after_s=1)
