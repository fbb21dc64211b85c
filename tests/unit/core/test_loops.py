"""When loops run again, in threads that wait for events and not for time."""

import threading
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from core.loops import DatabaseChanges, Loop, LoopThreads, pauses

FAR_S = 3_600


class Announced(DatabaseChanges):
    """Changes that a test announces."""

    def __init__(self) -> None:
        self._wakes = []


class Rounds:
    """A loop's function that lets a test wait for its rounds, and fails in the given ones."""

    def __init__(self, *, failing: tuple[int, ...] = ()) -> None:
        self.done = threading.Semaphore(0)
        self.count = 0
        self._failing = failing

    def __call__(self) -> None:
        self.count += 1
        try:
            if self.count in self._failing:
                raise RuntimeError("down")
        finally:
            self.done.release()


@pytest.fixture
def run():
    """Starts a loop's thread. Returns the changes, the metrics' registry and the threads."""
    started = []

    def start(loop: Loop) -> tuple[Announced, CollectorRegistry, LoopThreads]:
        changes, registry = Announced(), CollectorRegistry()
        failures = Counter("failures", "Failed rounds.", ["loop"], registry=registry)
        alive = Gauge("alive", "Last round.", ["loop"], registry=registry)
        threads = LoopThreads([loop], changes, backoff_max_s=0.01, failures=failures, alive=alive)
        threads.start()
        started.append(threads)
        return changes, registry, threads

    yield start
    for threads in started:
        assert threads.stop(10) == []


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (True, (0, 0)),
        (False, (0.5, 5)),
        (None, (0.5, 5)),
        (7, (0.5, 5)),
        (2.0, (0.5, 2)),
        (0.0, (0.5, 0.5)),
        (60.0, (0.5, 5)),
    ],
    ids=str,
)
def test_a_round_says_whether_and_when_there_is_more_to_do(returned, expected):
    assert pauses(Loop("waits", lambda: returned, 0.5, 5), returned) == expected


def test_a_loop_without_an_idle_time_is_paced_by_its_pause():
    assert pauses(Loop("ticks", lambda: None, 0.5), None) == (0.5, 0.5)


def test_a_change_wakes_a_loop_that_would_wait_for_an_hour(run):
    rounds = Rounds()
    changes, _, _ = run(Loop("waits", rounds, 0, FAR_S))
    for _ in range(3):
        assert rounds.done.acquire(timeout=10)
        changes.announce()
    assert rounds.done.acquire(timeout=10)


def test_a_change_during_a_round_is_followed_by_another_round(run):
    seen = []

    def run_once() -> None:
        seen.append(None)
        if len(seen) == 1:
            changes.announce()
        else:
            twice.set()

    twice, subscribed = threading.Event(), threading.Event()
    changes, _, _ = run(Loop("waits", lambda: subscribed.wait(10) and run_once(), 0, FAR_S))
    subscribed.set()
    assert twice.wait(10)


def test_a_failed_round_is_counted_and_repeated(run):
    rounds = Rounds(failing=(1, 2))
    _, registry, threads = run(Loop("fails", rounds, 0, FAR_S))
    for _ in range(3):
        assert rounds.done.acquire(timeout=10)
    assert threads.stop(10) == []
    assert registry.get_sample_value("failures_total", {"loop": "fails"}) == 2
    assert registry.get_sample_value("alive", {"loop": "fails"}) > 0


def test_a_loop_that_does_not_end_in_time_is_named(run):
    entered, leave = threading.Event(), threading.Event()

    def run_once() -> None:
        entered.set()
        leave.wait(10)

    _, _, threads = run(Loop("stuck", run_once, 0))
    assert entered.wait(10)
    assert threads.stop(0) == ["stuck"]
    leave.set()


def test_the_trouble_with_the_database_does_not_quote_its_error():
    attempts = threading.Semaphore(0)

    def connect():
        attempts.release()
        raise OSError("connection of user tenora to 10.0.0.7 failed")

    changes = DatabaseChanges(SimpleNamespace(raw_connection=connect), look_s=0.01)
    changes.start()
    for _ in range(2):
        assert attempts.acquire(timeout=10)
    changes.stop()
    assert changes.trouble == "the database does not answer"
