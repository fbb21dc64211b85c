"""Cost attribution as a job of the billing worker: it stores reported windows, shares out the hours that are due, and
deletes old windows.
"""

import time
from typing import Final

import redis as redis_client
import structlog
from sqlalchemy import Engine

from billing.costs.hours import allocate_due
from billing.costs.settings import CostSettings
from billing.costs.window_reader import delete_old, store_windows

_ALLOCATE_EVERY_S: Final = 60
_DELETE_EVERY_S: Final = 3_600

_log = structlog.get_logger()


class CostAttribution:
    """One worker's part in it. What is not done when the worker ends waits for the next one."""

    def __init__(self, engine: Engine, redis: redis_client.Redis, settings: CostSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings
        self._without_rate: frozenset[str] = frozenset()
        self._allocate_due = self._delete_due = time.monotonic()

    def run_once(self) -> None:
        """Store windows; once a minute share out the hours that are due, once an hour delete old windows."""
        store_windows(self._engine, self._redis, self._settings)
        if time.monotonic() >= self._allocate_due:
            self._allocate_due = time.monotonic() + _ALLOCATE_EVERY_S
            without_rate = allocate_due(self._engine, self._settings).without_rate
            if without_rate - self._without_rate:
                _log.warning("costs wait for a rate of the pool", replicas=sorted(without_rate))
            self._without_rate = without_rate
        if time.monotonic() >= self._delete_due:
            delete_old(self._engine, self._settings)
            self._delete_due = time.monotonic() + _DELETE_EVERY_S
