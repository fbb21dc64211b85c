"""Decides when quotas are rebuilt automatically: some seconds after Redis was found empty, restarted, or without the
mark that a rebuild leaves. ``rebuild`` does the work.

Until then months begin with what gateways have counted since; nothing that was charged before is lost.
"""

import time
from datetime import timedelta
from typing import Final

import redis as redis_client
import sqlalchemy as sa
import structlog

from billing import metrics
from billing.quotas import rebuild
from billing.usage.metering import OUTAGES
from core.errors import AppError

_PAUSE_S_MAX: Final = 60

_log = structlog.get_logger()


class QuotaRepair:
    """Remembers that Redis lost its data. A failed repair is repeated after a growing pause."""

    def __init__(
        self,
        engine: sa.Engine,
        redis: redis_client.Redis,
        *,
        delay_s: int,
        price_age_max: timedelta = rebuild.PRICE_AGE_MAX,
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._delay_s = delay_s
        self._price_age_max = price_age_max
        self._wanted = False
        self._due = time.monotonic()
        self._pause_s = delay_s

    @property
    def wanted(self) -> bool:
        """Whether quotas are known to be wrong and wait for a rebuild."""
        return self._wanted

    def redis_was_empty(self) -> None:
        """Rebuild after gateways have settled again what they still knew, so that it is not counted twice."""
        self._wanted, self._pause_s = True, self._delay_s
        self._due = time.monotonic() + self._delay_s

    def run_once(self) -> None:
        """Rebuild when it is time. Never raises for transient failures."""
        if not self._wanted and rebuild.is_due(self._engine, self._redis):
            self.redis_was_empty()
        if not self._wanted or time.monotonic() < self._due:
            return
        try:
            rebuilt = rebuild.rebuild(self._engine, self._redis, price_age_max=self._price_age_max)
        except (AppError, *OUTAGES) as error:
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
            self._due = time.monotonic() + self._pause_s
            _log.warning("quotas cannot be rebuilt yet", error=str(error)[:500], pause_s=self._pause_s)
            return
        self._wanted = False
        metrics.QUOTAS_REBUILT.inc(rebuilt.corrected)
        _log.info("quotas rebuilt", tenants=rebuilt.tenants, corrected=rebuilt.corrected)
