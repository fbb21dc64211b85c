"""The schedule of retries: to the end of the window and not past it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.notifications.retries import next_attempt
from billing.notifications.settings import DeliverySettings

QUEUED = datetime(2026, 11, 23, 12, tzinfo=UTC)
SETTINGS = DeliverySettings()
WINDOW = timedelta(days=3)


def after(tries: int, now: datetime, *, retry_after_s: int | None = None, chance: int = 0) -> datetime | None:
    return next_attempt(
        tries, now=now, queued_at=QUEUED, retry_after_s=retry_after_s, chance_permille=chance, settings=SETTINGS
    )


@pytest.mark.scenario(96)
@given(st.lists(st.integers(0, 1_000), min_size=300, max_size=300))
def test_a_delivery_that_always_fails_is_tried_for_exactly_three_days_and_a_bounded_number_of_times(chances):
    now, attempts, longest = QUEUED, [QUEUED], timedelta()
    for tries, chance in enumerate(chances, 1):
        following = after(tries, now, chance=chance)
        if following is None:
            break
        longest = max(longest, following - now)
        attempts.append(now := following)
    assert attempts[-1] == QUEUED + WINDOW
    assert 70 < len(attempts) < 170
    assert longest <= timedelta(hours=1)


def test_the_last_attempt_is_at_the_end_of_the_window():
    assert after(80, QUEUED + WINDOW - timedelta(seconds=1)) == QUEUED + WINDOW
    assert after(81, QUEUED + WINDOW) is None
    assert after(1, QUEUED + WINDOW + timedelta(days=1)) is None


@pytest.mark.parametrize(("asked_s", "pause_s"), [(None, 5), (0, 5), (3, 5), (60, 60), (999_999_999, 3_600)])
def test_a_receiver_may_ask_for_a_longer_pause_up_to_the_longest(asked_s, pause_s):
    assert after(1, QUEUED, retry_after_s=asked_s) == QUEUED + timedelta(seconds=pause_s)
