"""Cost attribution beside the billing worker's loop: a thread that stores reported windows and shares out due hours.

It has a Redis client of its own, and shares nothing with the loop that records usage but the pool of connections. It
survives outages: a failure is logged, and the next turn tries again.
"""

import threading
import time
from typing import Final

import redis as redis_client
import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from billing import metrics
from billing.costs.hours import allocate_due
from billing.costs.settings import CostSettings
from billing.costs.window_reader import store_windows
from core.errors import AppError

_ALLOCATE_EVERY_S: Final = 60
_FAILURES: Final = (redis_client.RedisError, SQLAlchemyError, AppError)

_log = structlog.get_logger()


class CostThread:
    """``start`` once; ``stop`` ends it after its current turn."""

    def __init__(self, engine: Engine, redis: redis_client.Redis, settings: CostSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings
        self._stopping = threading.Event()
        self._without_rate: frozenset[str] = frozenset()
        self._allocate_due = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="costs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: int) -> None:
        """Stop after the current turn, and wait for it at most this long. What is not done waits for the next start."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.cost_poll_s):
            try:
                self.run_once()
            except _FAILURES as error:
                metrics.COST_FAILURES.inc()
                _log.warning("cost attribution failed; trying again", cause=str(getattr(error, "orig", error))[:500])

    def run_once(self) -> None:
        """Store windows, and once a minute share out the hours that are due."""
        store_windows(self._engine, self._redis, self._settings)
        if time.monotonic() >= self._allocate_due:
            self._allocate_due = time.monotonic() + _ALLOCATE_EVERY_S
            without_rate = allocate_due(self._engine, self._settings).without_rate
            if without_rate - self._without_rate:
                _log.warning("costs wait for a rate of the pool", replicas=sorted(without_rate))
            self._without_rate = without_rate
