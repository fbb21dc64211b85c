"""Repeats rounds of work in threads of one process, and wakes them when the database has changed.

Two equal snapshots of Postgres see the same rows. So one cheap look at the snapshot replaces the queries of all loops
that wait for rows: no writer announces its work, and no announcement can get lost. What becomes due by time alone is
found by a loop's ``idle_s``, or after the seconds that its round returns.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import structlog
from prometheus_client import Counter, Gauge
from sqlalchemy import Engine

AFTER_PAUSE: Final = 0.0
"""What a round returns that has more to do, but not at once."""
Seconds: TypeAlias = float
"""For rooms of money, where no float is named."""

_SNAPSHOT: Final = b"SELECT pg_current_snapshot()"
_RECONNECT_S: Final = 0.5
_BACKOFF_FIRST_S: Final = 0.1
_log = structlog.get_logger()


class Loop(NamedTuple):
    """``run_once`` is called again at once if it returned True. Otherwise it is called again when ``pause_s`` has
    passed and the database has changed, or after ``idle_s`` without a change; a float that it returned is a shorter
    ``idle_s`` for this time. Without ``idle_s`` it is called every ``pause_s``.
    """

    name: str
    run_once: Callable[[], object]
    pause_s: float
    idle_s: float | None = None


class DatabaseChanges:
    """Looks every ``look_s`` whether a transaction that wrote something has ended. While Postgres does not answer,
    nothing is seen, and ``trouble`` says so; when it is back, that counts as a change.
    """

    def __init__(self, engine: Engine, *, look_s: float) -> None:
        self._engine = engine
        self._look_s = look_s
        self._stop = threading.Event()
        self._wakes: list[threading.Event] = []
        self.trouble = "the database has not been reached"
        self._thread = threading.Thread(target=self._watch, name="database-changes", daemon=True)

    def subscribe(self) -> threading.Event:
        """An event that is set at each change. Its owner clears it before it reads the database."""
        self._wakes.append(wake := threading.Event())
        return wake

    def start(self) -> None:
        """Begin to look, after the last subscription."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer, and set every event once more."""
        self._stop.set()
        self.announce()

    def announce(self) -> None:
        """Wake every loop, for what this process keeps beside the database."""
        for wake in self._wakes:
            wake.set()

    def _watch(self) -> None:
        logged = ""
        while not self._stop.is_set():
            try:
                self._look_until_stopped()
            except Exception as error:  # noqa: BLE001 - the thread survives every error; loops look after ``idle_s``
                cause = str(error)[:500]
                if not self.trouble or cause != logged:
                    _log.warning("changes of the database are not seen", cause=cause)
                self.trouble, logged = "the database does not answer", cause
                self._stop.wait(_RECONNECT_S)

    def _look_until_stopped(self) -> None:
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()  # the pool keeps its connections for the loops
        with contextlib.closing(connection):
            connection.autocommit = True
            seen: bytes | None = None
            while not self._stop.is_set():
                result = connection.pgconn.exec_(_SNAPSHOT)  # a third of the CPU time of a cursor
                if result.error_message:
                    raise ConnectionError(result.error_message.decode(errors="replace"))
                self.trouble = ""
                if (found := result.get_value(0, 0)) != seen:
                    seen = found
                    self.announce()
                self._stop.wait(self._look_s)


class LoopThreads:
    """Runs each loop in a thread of its own until ``stop``, so that no loop waits for another one. A round that fails
    is logged and repeated after a growing pause.
    """

    def __init__(
        self,
        loops: Sequence[Loop],
        changes: DatabaseChanges,
        *,
        backoff_max_s: float,
        failures: Counter,
        alive: Gauge | None = None,
    ) -> None:
        self._stop = threading.Event()
        self._backoff_max_s = backoff_max_s
        self._failures = failures
        self._alive = alive
        self._wakes = [threading.Event() if loop.idle_s is None else changes.subscribe() for loop in loops]
        # Daemons: a loop that is stuck in a dependency must not keep a stopping worker alive. Each may be killed at any
        # instant anyway.
        self._threads = [
            threading.Thread(target=self._repeat, args=(loop, wake), name=loop.name, daemon=True)
            for loop, wake in zip(loops, self._wakes, strict=True)
        ]

    def start(self) -> None:
        """Begin the first round of every loop."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> list[str]:
        """Ask every loop to end after its current round, and wait for them together for at most ``timeout_s``. Returns
        the names of those that still run.
        """
        self._stop.set()
        for wake in self._wakes:
            wake.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _repeat(self, loop: Loop, wake: threading.Event) -> None:
        failed = 0
        while not self._stop.is_set():
            wake.clear()
            try:
                soonest_s, latest_s = pauses(loop, loop.run_once())
                failed = 0
                if self._alive is not None:
                    self._alive.labels(loop.name).set_to_current_time()
            except Exception as error:  # noqa: BLE001 - a loop survives every error of one round
                failed += 1
                self._failures.labels(loop.name).inc()
                soonest_s = latest_s = min(self._backoff_max_s, _BACKOFF_FIRST_S * 2 ** min(failed, 10))
                _log.warning("loop round failed", loop=loop.name, failures=failed, exc_info=error)
            if not self._stop.wait(soonest_s) and latest_s > soonest_s:
                wake.wait(latest_s - soonest_s)


def pauses(loop: Loop, returned: object) -> tuple[float, float]:
    """The shortest and the longest pause after a round, in seconds."""
    if returned is True:
        return 0.0, 0.0
    latest_s = loop.pause_s if loop.idle_s is None else loop.idle_s
    if isinstance(returned, float):
        latest_s = min(latest_s, returned)
    return loop.pause_s, max(loop.pause_s, latest_s)
