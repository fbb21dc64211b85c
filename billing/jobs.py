"""Repeats the worker's other jobs, each in a thread of its own, so that nothing slow runs between two usage batches."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from billing import metrics

_log = structlog.get_logger()


class Job(NamedTuple):
    """What to repeat, and the pause between two runs."""

    name: str
    every_ms: int
    run_once: Callable[[], object]


class JobThreads:
    """Runs jobs until it is stopped. A run that fails is logged and repeated after the usual pause."""

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
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))

    def _repeat(self, job: Job) -> None:
        while True:
            try:
                job.run_once()
            except Exception as error:  # noqa: BLE001 - a job survives every error of one run
                metrics.JOBS_FAILED.labels(job.name).inc()
                _log.warning("a billing job failed; trying again", job=job.name, exc_info=error)
            if self._stop.wait(job.every_ms / 1000):
                return
