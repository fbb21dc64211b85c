"""Compares quotas with the ledger for recently active tenants and repairs differences. This module decides when and for
which tenants; ``rebuild`` compares and repairs. A worker begins with all tenants of the month, because the one
before may have died with tenants that it had yet to compare.

A difference has a cause: usage that was amended, a settlement that no quota counted, or one that was counted twice
because Redis had lost its marker. Holds of running requests do not count: only settled usage is compared.
"""

import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice

import redis as redis_client
import sqlalchemy as sa
import structlog

from billing import metrics
from billing.quotas import rebuild
from billing.quotas.rebuild import Drift
from billing.usage.amendments import tenants_amended_since
from billing.usage.metering import OUTAGES
from billing.usage.stream import StreamBacklog
from core.db import LATE_COMMITS, database_now, unit_of_work
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
        price_age_max: timedelta = rebuild.PRICE_AGE_MAX,
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._every_s = every_s
        self._tenants_max = tenants_max
        self._price_age_max = price_age_max
        self._tenants: dict[str, bool] = {}  # whether its usage was amended, which explains a difference
        self._looked_at: datetime | None = None
        self._due = time.monotonic() + every_s

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next comparison."""
        return time.monotonic() >= self._due

    def record_active(self, tenant_ids: Iterable[str]) -> None:
        """Remember that these tenants used something."""
        for tenant_id in tenant_ids:
            self._tenants.setdefault(tenant_id, False)

    def run_once(self, backlog: StreamBacklog) -> None:
        """Compare and repair when it is time. Never raises for transient failures."""
        if not self.is_due or backlog.length + backlog.dead_letters > _EVENTS_MAX:
            return
        self._due = time.monotonic() + self._every_s
        remaining: deque[tuple[str, bool]] = deque()
        try:
            self._record_changed()
            remaining.extend(islice(self._tenants.items(), self._tenants_max))
            for tenant_id, _ in remaining:
                del self._tenants[tenant_id]
            ids = [tenant_id for tenant_id, _ in remaining]
            found = rebuild.drift(self._engine, self._redis, ids, price_age_max=self._price_age_max)
            metrics.QUOTA_DRIFT_TOKENS.set(sum(abs(one.tokens) for one in found.values()))
            remaining = deque((tenant_id, amended) for tenant_id, amended in remaining if tenant_id in found)
            while remaining:
                tenant_id, amended = remaining[0]
                self._mend(tenant_id, found[tenant_id], amended=amended)
                remaining.popleft()
        except (AppError, *OUTAGES) as error:
            _log.warning("quotas cannot be compared with the ledger", error=str(error)[:500])
            remaining.rotate(-1)  # if this tenant caused the failure, the others come first next time
            for tenant_id, amended in remaining:
                self._tenants[tenant_id] = amended or self._tenants.get(tenant_id, False)

    def _record_changed(self) -> None:
        """Remember the tenants of which usage was amended since the last look, and all at the first one."""
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            amended = tenants_amended_since(session, (self._looked_at or now) - LATE_COMMITS)
            if self._looked_at is None:
                self.record_active(rebuild.tenants_of_month(session))
        self._tenants.update(dict.fromkeys(amended, True))
        self._looked_at = now

    def _mend(self, tenant_id: str, beside: Drift, *, amended: bool) -> None:
        rebuilt = rebuild.rebuild(self._engine, self._redis, tenant_id, price_age_max=self._price_age_max)
        if rebuilt.corrected and not amended:
            metrics.QUOTA_DRIFTS.inc()
            _log.error("quota corrected from the ledger", tenant_id=tenant_id, **beside._asdict())
