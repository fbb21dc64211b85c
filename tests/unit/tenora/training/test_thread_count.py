"""The thread count that a training chooses, on simulated machines with given step times."""

import os
from collections.abc import Callable

import pytest

from tenora.training import thread_count
from tenora.training.thread_count import ThreadCount, candidate_counts, idle_core_seconds

IDLE = {1: 0.6, 2: 0.4}
ONE_CORE_BUSY = {1: 0.6, 2: 2.0}


def run(
    threads: ThreadCount,
    steps: int,
    takes_s: Callable[[int], dict[int, float]],
    idle_cores: Callable[[int], float] = lambda _: 0.0,
) -> list[int]:
    """The count of each step, where step n takes ``takes_s(n)[count]``, in batches of unequal size."""
    counts = []
    for step in range(steps):
        counts.append(threads.current)
        tokens = 200 + 50 * (step % 3)
        threads.record(takes_s(step)[threads.current] * tokens / 225, tokens, idle_cores(step))
    return counts


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (8, [1, 2, 4, 7, 8]), (12, [1, 2, 4, 8, 11, 12])],
)
def test_all_cores_and_all_but_one_are_tried(cores, counts):
    assert candidate_counts(cores) == counts


def test_a_busy_core_is_left_to_its_process_after_one_slow_step():
    counts = run(ThreadCount([1, 2]), 100, lambda _: ONE_CORE_BUSY)
    assert counts[:4] == [1, 1, 2, 1]


def test_a_core_that_becomes_free_is_used_again():
    counts = run(ThreadCount([1, 2]), 80, lambda step: ONE_CORE_BUSY if step < 10 else IDLE)
    assert counts[35:].count(1) <= 4
    assert counts[-1] == 2


def test_a_core_that_is_seen_to_be_idle_is_used_after_three_steps():
    counts = run(
        ThreadCount([1, 2]), 60, lambda step: ONE_CORE_BUSY if step < 10 else IDLE, lambda step: 0.1 + (step >= 10)
    )
    assert counts[:10].count(2) == 1
    assert counts[10:].count(1) == 3 + 3  # until it is noticed, and the trial after that
    assert counts[-1] == 2


def test_the_idle_time_is_read_of_all_cores_together_with_the_time_they_wait_for_disks(monkeypatch, tmp_path):
    stat, ticks_a_second = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    idle, waiting = 70 * ticks_a_second, 5 * ticks_a_second
    stat.write_text(f"cpu  11 12 13 {idle} {waiting} 16 17 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0\nintr 1\n")
    monkeypatch.setattr(thread_count, "_PROC_STAT", stat)
    assert idle_core_seconds() == 75


@pytest.mark.parametrize("content", [None, "", "cpu  11 12"])
def test_no_idle_time_is_known_where_linux_does_not_say(monkeypatch, tmp_path, content):
    if content is not None:
        (tmp_path / "stat").write_text(content)
    monkeypatch.setattr(thread_count, "_PROC_STAT", tmp_path / "stat")
    assert idle_core_seconds() == 0
