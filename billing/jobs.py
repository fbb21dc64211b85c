"""Repeats the worker's other jobs, each in a thread of its own, so that nothing slow runs between two usage batches."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from billing import metrics
from billing.metering import OUTAGES
from core.errors import AppError

_log = structlog.get_logger()


class Job(NamedTuple):
    """What to repeat, and the pause between two runs."""

    name: str
    every_ms: int
    run_once: Callable[[], None]


class JobThreads:
    """Runs jobs until it is stopped. A run that fails for an outage is repeated after the usual pause."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._stop = threading.Event()
        # Daemons: a job that is stuck in a dependency must not keep a stopping worker alive. Each job may be killed at
        # any instant anyway.
        self._threads = [threading.Thread(target=self._repeat, args=(job,), name=job.name, daemon=True) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: int) -> None:
        """Ask every job to end after its current run, and wait for them together for at most ``timeout_s``."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def _repeat(self, job: Job) -> None:
        while True:
            try:
                job.run_once()
            except (AppError, *OUTAGES) as error:
                metrics.JOBS_FAILED.labels(job.name).inc()
                _log.warning("a billing job failed; trying again", job=job.name, error=str(error)[:500])
            if self._stop.wait(job.every_ms / 1000):
                return
