"""How many lines run at once, which batches run, which of their lines, and when a batch is in danger."""

from datetime import timedelta

import pytest

from control_plane.batches import open_batch
from control_plane.batches.open_batch import BatchEnd, OpenBatch, chosen
from control_plane.batches.pace import Pace
from control_plane.batches.progress import estimated_end, in_danger, line_time
from tests.fixtures.control_plane.batches import DAY, START, batch_row, opened

CANCELLED = BatchEnd("cancelled", "batch_cancelled", "Cancelled.")


def round_of_answers(pace: Pace) -> None:
    for _ in range(pace.limit):
        pace.answered()


def test_the_pace_doubles_until_the_first_refusal_and_then_grows_by_one():
    pace = Pace(64)
    limits = []
    for _ in range(2):
        limits.append(pace.limit)
        round_of_answers(pace)
    assert limits == [8, 16]
    pace.refused(10.0)
    assert pace.limit == 16
    round_of_answers(pace)
    round_of_answers(pace)
    assert pace.limit in (17, 18)


def test_refusals_at_once_count_once_and_the_pace_stays_within_its_bounds():
    pace = Pace(8)
    for _ in range(100):
        pace.answered()
    assert pace.limit == 8
    for _ in range(5):
        pace.refused(10.0)
    assert pace.limit == 4
    for second in range(20):
        pace.refused(20.0 + 3 * second)
    assert pace.limit == 1


def test_batches_run_in_turn_over_tenants_by_danger_priority_and_age():
    rows = [
        batch_row("batch_1", "a"), batch_row("batch_2", "a", priority=0),
        batch_row("batch_3", "a", service_class="interactive"), batch_row("batch_4", "b", priority=2),
    ]  # fmt: skip
    assert [each.id for each in chosen(rows, 9, {})] == ["batch_3", "batch_4", "batch_2", "batch_1"]
    assert [each.id for each in chosen(rows, 2, {})] == ["batch_3", "batch_4"]


def test_batches_that_were_put_back_run_last_the_longest_ago_first():
    rows = [batch_row(f"batch_{number}", "a") for number in range(4)]
    put_back = {"batch_0": 7, "batch_1": 5}
    assert [each.id for each in chosen(rows, 9, put_back)] == ["batch_2", "batch_3", "batch_1", "batch_0"]


def begun(batch: OpenBatch) -> list[int]:
    """The lines that may be sent at once."""
    found = []
    while batch.has_due(10.0):
        found.append(batch.next_line(10.0).plan.line)
        batch.running += 1
    return found


def test_a_batch_begins_as_many_lines_as_its_own_pace_allows():
    batch = opened(9, at_once=4)
    assert begun(batch) == [1, 2, 3, 4]
    batch.running, batch.pace = 0, Pace(1)
    assert begun(batch) == [5]


def test_a_batch_that_has_no_turn_sends_only_lines_that_may_have_run():
    batch = opened(3)
    first, second = batch.next_line(0.0), batch.next_line(0.0)
    first.may_have_run = True
    batch.send_later(first, 5.0)
    batch.send_later(second, 5.0)
    batch.is_chosen = False
    assert not batch.is_idle
    assert begun(batch) == [1]
    batch.running = 0
    assert batch.is_idle
    assert not batch.is_over
    batch.is_chosen = True
    assert begun(batch) == [2, 3]


def test_a_batch_that_ends_early_asks_for_lines_that_may_have_run_and_leaves_the_others():
    batch = opened(4)
    first, second = batch.next_line(0.0), batch.next_line(0.0)
    first.may_have_run = True
    batch.send_later(first, 0.0)
    batch.stop(CANCELLED)
    batch.stop(BatchEnd("expired"))
    assert batch.end == CANCELLED
    batch.send_later(second, 0.0)
    assert begun(batch) == [1]
    batch.running = 0
    assert batch.is_over


def test_a_batch_is_stuck_when_lines_are_refused_and_none_has_ended_for_a_minute():
    batch = opened(2)
    assert not batch.is_stuck(1000.0)
    batch.refused(1000.0)
    assert batch.is_stuck(1000.0)
    batch.answered(1000.0)
    batch.refused(1000.0)
    assert not batch.is_stuck(1000.0 + open_batch._STUCK_S)
    assert batch.is_stuck(1001.0 + open_batch._STUCK_S)


@pytest.mark.parametrize(
    ("done", "hours", "danger"),
    [
        (500, 10, False),  # ends at 20 h
        (500, 11, True),  # ends at 22 h, with less than a quarter of the 13 h left to spare
        (0, 17, False),
        (0, 19, True),  # nothing is known of its speed, and the last quarter has begun
        (19, 19, True),
    ],
)
def test_a_batch_is_in_danger_when_its_speed_leaves_too_little_to_spare(done, hours, danger):
    row, now = batch_row(total=1000, completed=done), START + timedelta(hours=hours)
    assert in_danger(row, since=START, done_before=0, now=now, spare_percent=25) is danger


def test_time_without_a_turn_is_no_slowness():
    row, now = batch_row(total=1000, completed=60, failed=40), START + timedelta(hours=20)
    assert in_danger(row, since=START, done_before=0, now=now, spare_percent=25)
    assert not in_danger(row, since=now - timedelta(minutes=1), done_before=70, now=now, spare_percent=25)


def test_the_estimate_counts_lines_ahead_and_never_passes_the_deadline():
    per_line = line_time(100, START, START + timedelta(seconds=200))
    assert per_line == timedelta(seconds=2)
    now = START + timedelta(seconds=200)
    assert estimated_end(50, 25, per_line, now=now, expires_at=START + DAY) == now + timedelta(seconds=150)
    assert estimated_end(10**6, 0, per_line, now=now, expires_at=START + DAY) == START + DAY
    assert estimated_end(1, 0, None, now=now, expires_at=START + DAY) == START + DAY
    assert line_time(3, START, now) is None
    assert line_time(100, None, now) is None
