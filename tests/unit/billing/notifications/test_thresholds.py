"""Alerts of thresholds: each once, in order, whatever the steps in which an amount grows or falls."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.notifications.event_types import EVENT_TYPES
from billing.notifications.thresholds import (
    balance_alerts,
    commitment_alerts,
    crossed_floors,
    crossed_percents,
    spend_alerts,
)
from core.periods import Period

DOLLAR = 1_000_000_000
NOVEMBER = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
AMOUNTS = st.integers(0, 10**15)


def spend(before: int, after: int, limit: int = 100 * DOLLAR, period: Period = NOVEMBER):
    return spend_alerts(
        scope_id="tn_1:month",
        scope="the account",
        period=period,
        before_nanos=before,
        after_nanos=after,
        limit_nanos=limit,
    )


@pytest.mark.scenario(94)
def test_one_record_from_40_to_100_percent_raises_three_alerts_in_order():
    alerts = spend(40 * DOLLAR, 100 * DOLLAR)
    assert [each.data["percent"] for each in alerts] == [50, 80, 100]
    assert len({each.dedupe_key for each in alerts}) == 3
    assert alerts == spend(40 * DOLLAR, 100 * DOLLAR), "the same again: the keys make them once each"
    assert spend(100 * DOLLAR, 130 * DOLLAR) == []


@pytest.mark.parametrize(
    ("before", "after", "crossed"),
    [
        (0, 0, []),
        (0, 50 * DOLLAR - 1, []),
        (50 * DOLLAR - 1, 50 * DOLLAR, [50]),
        (50 * DOLLAR, 80 * DOLLAR - 1, []),
        (0, 80 * DOLLAR, [50, 80]),
        (79 * DOLLAR, 200 * DOLLAR, [80, 100]),
        (90 * DOLLAR, 40 * DOLLAR, []),
    ],
)
def test_a_threshold_is_crossed_at_its_exact_nanodollar(before, after, crossed):
    assert crossed_percents(before_nanos=before, after_nanos=after, limit_nanos=100 * DOLLAR) == crossed


def test_a_limit_that_no_percentage_divides_is_compared_exactly():
    assert crossed_percents(before_nanos=0, after_nanos=1, limit_nanos=3) == []
    assert crossed_percents(before_nanos=1, after_nanos=2, limit_nanos=3) == [50]
    assert crossed_percents(before_nanos=2, after_nanos=3, limit_nanos=3) == [80, 100]
    assert crossed_percents(before_nanos=0, after_nanos=5, limit_nanos=0) == []


@given(st.lists(AMOUNTS, min_size=1, max_size=40), st.integers(1, 10**15))
def test_any_steps_raise_the_same_alerts_as_one_step(amounts, limit):
    values = [0, *sorted(amounts)]
    stepwise = [
        percent
        for before, after in pairwise(values)
        for percent in crossed_percents(before_nanos=before, after_nanos=after, limit_nanos=limit)
    ]
    assert stepwise == crossed_percents(before_nanos=0, after_nanos=values[-1], limit_nanos=limit)
    assert stepwise == sorted(set(stepwise))


@given(AMOUNTS, AMOUNTS, st.lists(AMOUNTS, max_size=8))
def test_floors_are_crossed_in_the_order_of_falling_and_never_while_rising(before, after, floors):
    crossed = crossed_floors(before_nanos=before, after_nanos=after, floors_nanos=floors)
    assert crossed == sorted(set(crossed), reverse=True)
    assert all(after <= floor < before for floor in crossed)
    assert not (crossed and after >= before)


def test_a_floor_is_reported_once_for_each_top_up():
    def fall(since: str):
        return balance_alerts(
            before_nanos=20 * DOLLAR, after_nanos=4 * DOLLAR, floors_nanos=[5 * DOLLAR, 10 * DOLLAR, 0], since=since
        )

    assert [each.data["floor_nanos"] for each in fall("lot_1")] == [10 * DOLLAR, 5 * DOLLAR]
    assert {each.dedupe_key for each in fall("lot_1")}.isdisjoint(each.dedupe_key for each in fall("lot_2"))


def test_a_new_period_a_new_limit_and_another_scope_have_keys_of_their_own():
    december = Period(NOVEMBER.end, datetime(2027, 1, 1, tzinfo=UTC))
    base = {each.dedupe_key for each in spend(0, 100 * DOLLAR)}
    for other in (
        spend(0, 100 * DOLLAR, period=december),
        spend(0, 200 * DOLLAR, limit=200 * DOLLAR),
        spend_alerts(
            scope_id="key_1:day", scope="k", period=NOVEMBER, before_nanos=0, after_nanos=100 * DOLLAR,
            limit_nanos=100 * DOLLAR,
        ),
    ):  # fmt: skip
        assert len(other) == 3
        assert base.isdisjoint(each.dedupe_key for each in other)


@pytest.mark.scenario(98)
def test_a_limit_lowered_below_what_is_spent_raises_every_alert_of_the_new_limit():
    assert [each.data["percent"] for each in spend(0, 70 * DOLLAR, limit=50 * DOLLAR)] == [50, 80, 100]


def test_the_same_instant_in_two_zones_is_one_period():
    berlin = timezone(timedelta(hours=1))
    same = Period(NOVEMBER.start.astimezone(berlin), NOVEMBER.end.astimezone(berlin))
    assert spend(0, 100 * DOLLAR) == spend(0, 100 * DOLLAR, period=same)


def test_alerts_have_every_field_that_their_type_requires():
    commitment = commitment_alerts(
        period=NOVEMBER, before_nanos=0, after_nanos=60 * DOLLAR, commitment_nanos=100 * DOLLAR
    )
    floor = balance_alerts(before_nanos=2, after_nanos=0, floors_nanos=[1], since="lot_1")
    for alert in (*spend(0, 60 * DOLLAR), *commitment, *floor):
        assert set(EVENT_TYPES[alert.event_type].fields) == set(alert.data)
        assert len(alert.dedupe_key) <= 300
