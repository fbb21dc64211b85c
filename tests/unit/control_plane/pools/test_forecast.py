"""What a pool will need, by what it needed before. Slots are counted from any Monday."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.pools.forecast import DAY, SLOT_S, WEEK, expected_need, slot_of, slots_read

NOW = 100 * WEEK
NINE = 9 * 3600 // SLOT_S


def days(number: int, load) -> dict[int, int]:
    """The needs of as many days before now, one for each slot of a day."""
    return {NOW - day * DAY + slot: load(slot) for day in range(1, number + 1) for slot in range(DAY)}


def office(slot: int) -> int:
    return 6 if slot >= NINE else 2


def test_the_need_of_the_same_time_of_earlier_days_comes_one_start_ahead():
    needs, nine = days(5, office), NOW + NINE
    assert expected_need(needs, nine - 3, nine - 1) == 2
    assert expected_need(needs, nine - 3, nine) == 6, "a replica takes three slots to start"


def test_too_short_a_past_tells_nothing():
    assert expected_need(days(2, office), NOW, NOW) is None
    assert expected_need({}, NOW, NOW) is None


def test_one_day_out_of_seven_does_not_decide():
    needs = days(7, office) | {NOW - 3 * DAY: 50}
    assert expected_need(needs, NOW, NOW) == 2


def test_the_same_weekday_goes_before_other_days():
    needs = days(28, lambda _: 8) | {NOW - week * WEEK + slot: 3 for week in range(1, 5) for slot in range(DAY)}
    assert expected_need(needs, NOW, NOW) == 3


@pytest.mark.parametrize(("seen", "expected"), [(0, 2), (2, 2), (3, 3), (4, 4), (5, 5), (40, 6)])
def test_the_last_half_hour_scales_the_past_within_bounds(seen, expected):
    needs = days(7, lambda _: 4) | {NOW - ago: seen for ago in range(1, 7)}
    assert expected_need(needs, NOW, NOW) == expected


@given(st.dictionaries(st.integers(NOW - 4 * WEEK, NOW - 1), st.integers(0, 100), max_size=60), st.integers(0, 30))
def test_a_forecast_reads_only_the_slots_that_it_names_and_stays_within_its_past(needs, ahead):
    expected = expected_need(needs, NOW, NOW + ahead)
    read = {slot: need for slot, need in needs.items() if slot in slots_read(NOW, NOW + ahead)}
    assert expected_need(read, NOW, NOW + ahead) == expected
    assert expected is None or expected <= 1.5 * max(needs.values()) + 1


def test_a_slot_is_five_minutes_of_utc():
    assert [slot_of(each) for each in (0, 299.9, 300, 86_400)] == [0, 0, 1, DAY]
