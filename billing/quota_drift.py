"""Compares quotas with the ledger for recently active tenants and repairs differences. This module decides when and for
which tenants; ``quota_rebuild`` compares and repairs. A worker begins with all tenants of the month, because the one
before may have died with tenants that it had yet to compare.

A difference has a cause: a settlement that no quota counted, or one that was counted twice because Redis had lost its
marker. Holds of running requests do not count: only settled usage is compared.
"""

import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice

import redis as redis_client
import sqlalchemy as sa
import structlog

from billing import metrics, quota_rebuild
from billing.metering import OUTAGES
from billing.quota_rebuild import Drift
from billing.stream import StreamBacklog
from core.errors import AppError

_EVENTS_MAX = 5_000  # in the stream and the dead letters: one comparison reads them all

_log = structlog.get_logger()


class QuotaDrift:
    """The worker's round over tenants: a limited number per period."""

    def __init__(
        self,
        engine: sa.Engine,
        redis: redis_client.Redis,
        *,
        every_s: int,
        tenants_max: int,
        price_age_max: timedelta = quota_rebuild.PRICE_AGE_MAX,
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._every_s = every_s
        self._tenants_max = tenants_max
        self._price_age_max = price_age_max
        self._active: dict[str, None] = {}
        self._started = False
        self._due = time.monotonic() + every_s

    def record_active(self, tenant_ids: Iterable[str]) -> None:
        """Remember that these tenants used something."""
        self._active.update(dict.fromkeys(tenant_ids))

    def run_once(self, backlog: StreamBacklog) -> None:
        """Compare and repair when it is time. Never raises for transient failures."""
        if time.monotonic() < self._due or backlog.length + backlog.dead_letters > _EVENTS_MAX:
            return
        self._due = time.monotonic() + self._every_s
        remaining: deque[str] = deque()
        try:
            if not self._started:
                self.record_active(quota_rebuild.tenants_of_month(self._engine))
                self._started = True
            remaining.extend(islice(self._active, self._tenants_max))
            for tenant_id in remaining:
                del self._active[tenant_id]
            found = quota_rebuild.drift(self._engine, self._redis, remaining, price_age_max=self._price_age_max)
            metrics.QUOTA_DRIFT_TOKENS.set(sum(abs(one.tokens) for one in found.values()))
            remaining = deque(found)
            while remaining:
                self._mend(remaining[0], found[remaining[0]])
                remaining.popleft()
        except (AppError, *OUTAGES) as error:
            _log.warning("quotas cannot be compared with the ledger", error=str(error)[:500])
            remaining.rotate(-1)  # if this tenant caused the failure, the others come first next time
            self.record_active(remaining)

    def _mend(self, tenant_id: str, beside: Drift) -> None:
        rebuilt = quota_rebuild.rebuild(self._engine, self._redis, tenant_id, price_age_max=self._price_age_max)
        if rebuilt.corrected:
            metrics.QUOTA_DRIFTS.inc()
            _log.error("quota corrected from the ledger", tenant_id=tenant_id, **beside._asdict())
