"""Compares quotas with the ledger for tenants that have used something of late, and mends what differs. The comparison
and the mending are ``rebuild_quotas``'s; here is decided when, and for whom.

A difference has a cause: a settlement that no quota counted, or one that was counted twice when Redis had lost its
marker. Holds of running requests are none: only what was settled is compared.
"""

import time
from collections import deque
from collections.abc import Iterable
from itertools import islice

import redis as redis_client
import sqlalchemy as sa
import structlog

from billing import metrics, quota_rebuild
from billing.metering import OUTAGES
from billing.quota_rebuild import Drift
from billing.stream import StreamBacklog
from core.errors import AppError

_EVENTS_MAX = 5_000  # in the stream and among the dead letters: one look reads them all

_log = structlog.get_logger()


class QuotaDrift:
    """The worker's round over tenants, so many every so often."""

    def __init__(self, engine: sa.Engine, redis: redis_client.Redis, *, every_s: int, tenants_max: int) -> None:
        self._engine = engine
        self._redis = redis
        self._every_s = every_s
        self._tenants_max = tenants_max
        self._active: dict[str, None] = {}
        self._due = time.monotonic() + every_s

    def note(self, tenant_ids: Iterable[str]) -> None:
        """These have used something."""
        self._active.update(dict.fromkeys(tenant_ids))

    def step(self, backlog: StreamBacklog) -> None:
        """Compare and mend if it is time to. Never raises for what may pass."""
        if time.monotonic() < self._due or backlog.length + backlog.dead_letters > _EVENTS_MAX:
            return
        self._due = time.monotonic() + self._every_s
        remaining = deque(islice(self._active, self._tenants_max))
        for tenant_id in remaining:
            del self._active[tenant_id]
        try:
            found = quota_rebuild.drift(self._engine, self._redis, remaining)
            metrics.QUOTA_DRIFT_TOKENS.set(sum(abs(one.tokens) for one in found.values()))
            remaining = deque(found)
            while remaining:
                self._mend(remaining[0], found[remaining[0]])
                remaining.popleft()
        except (AppError, *OUTAGES) as error:
            _log.warning("quotas cannot be compared with the ledger", error=str(error)[:500])
            remaining.rotate(-1)  # if it was this one's fault, all others come first next time
            self.note(remaining)

    def _mend(self, tenant_id: str, beside: Drift) -> None:
        if quota_rebuild.rebuild(self._engine, self._redis, tenant_id).corrected:
            metrics.QUOTA_DRIFTS.inc()
            _log.error("a quota differed from the ledger; mended", tenant_id=tenant_id, **beside._asdict())
