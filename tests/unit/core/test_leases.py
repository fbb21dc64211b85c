"""The pauses between the attempts of leased work. That a lease is taken and lost, the tests of its queues show."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from core.leases import pause


def test_pauses_double_from_five_seconds_to_an_hour():
    pauses = [pause(attempts, first_ms=5_000, longest_ms=3_600_000).seconds for attempts in range(1, 13)]
    assert pauses[:5] == [5, 10, 20, 40, 80]
    assert pauses[-2:] == [3_600, 3_600]


@given(st.integers(1, 10_000), st.integers(0, 1_000))
def test_chance_takes_at_most_half_of_a_pause(attempts, chance):
    whole = pause(attempts, first_ms=5_000, longest_ms=3_600_000)
    shortened = pause(attempts, first_ms=5_000, longest_ms=3_600_000, chance_permille=chance)
    assert whole / 2 <= shortened <= whole <= timedelta(hours=1)
