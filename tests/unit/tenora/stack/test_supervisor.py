"""When the supervisor starts a program again that has ended."""

from pathlib import Path

from tenora.stack.program import Program
from tenora.stack.supervisor import Child


def child(**fields) -> Child:
    return Child(Program(name="engine", argv=("engine",), ready=lambda: True, log=Path("log"), **fields))


def pauses_s(child: Child, ends: int, *, start_s: float = 40, ready_s: float | None = None) -> list[float]:
    """The pauses after so many ends, each ``start_s`` after a start, and ``ready_s`` after it was ready."""
    now, found = 0.0, []
    for _ in range(ends):
        now += start_s
        child.ready_since = None if ready_s is None else now - ready_s
        child.restart_later(now)
        found.append(round(child.start_after - now, 3))
        now = child.start_after
    return found


def test_a_replica_that_is_never_ready_waits_longer_each_time_up_to_its_most():
    assert pauses_s(child(backoff_max_s=60), 12)[-4:] == [51.2, 60, 60, 60]


def test_a_program_that_was_ready_for_long_starts_again_at_once():
    ended = child(backoff_max_s=60)
    pauses_s(ended, 12)
    assert pauses_s(ended, 1, ready_s=31) == [0.2]


def test_a_program_that_was_ready_only_for_a_moment_goes_on_waiting_longer():
    assert pauses_s(child(), 6, ready_s=1) == [0.2, 0.4, 0.8, 1.6, 3.2, 5]
