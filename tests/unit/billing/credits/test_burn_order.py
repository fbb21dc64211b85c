"""Which lots pay for which charges."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.credits.burn_order import BurnableLot, DatedCharge, burn, without_rest
from billing.credits.views import CreditUse

DOLLAR = 1_000_000_000
DAY = timedelta(days=1)
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)


def lot(name: str, dollars: float = 50, **changes) -> BurnableLot:
    values = {
        "id": name, "kind": "paid", "priority": 50, "effective_from": NOVEMBER, "expires_at": None, "models": (),
        "left_nanos": round(dollars * DOLLAR),
    }  # fmt: skip
    return BurnableLot(**(values | changes))


def charge(dollars: float, at: datetime = NOVEMBER + DAY, model: str | None = "small") -> DatedCharge:
    return DatedCharge(at=at, model=model, amount_nanos=round(dollars * DOLLAR))


def used(lots, charges) -> dict[str, float]:
    return {use.lot_id: use.amount_nanos / DOLLAR for use in burn(lots, charges).uses}


@pytest.mark.scenario(72)
def test_the_smaller_priority_burns_first_also_before_promotional_credit():
    lots = [lot("paid", 50, priority=10), lot("promotional", 10, kind="promotional")]
    assert used(lots, [charge(12.34)]) == {"paid": 12.34}


@pytest.mark.scenario(73)
def test_then_the_lot_that_expires_first_burns_then_promotional_then_the_older():
    fifth, ninth = NOVEMBER + 4 * DAY, NOVEMBER + 8 * DAY
    assert used([lot("b", 5, expires_at=ninth), lot("a", 5, expires_at=fifth)], [charge(6)]) == {"a": 5, "b": 1}
    same = [lot("paid", 5, expires_at=ninth), lot("gift", 5, kind="promotional", expires_at=ninth)]
    assert used(same, [charge(6)]) == {"gift": 5, "paid": 1}
    older = [
        lot("new", 5, effective_from=NOVEMBER + timedelta(hours=1)),
        lot("old", 5),
        lot("ends", 5, expires_at=ninth),
    ]
    assert used(older, [charge(12)]) == {"ends": 5, "old": 5, "new": 2}


@pytest.mark.scenario(74)
def test_usage_before_the_expiry_uses_the_lot_and_usage_at_it_does_not():
    ends = NOVEMBER + 5 * DAY
    lots = [lot("ends", 5, expires_at=ends), lot("stays", 5)]
    assert used(lots, [charge(1, ends - timedelta(milliseconds=1))]) == {"ends": 1}
    assert used(lots, [charge(1, ends)]) == {"stays": 1}


@pytest.mark.scenario(76)
def test_usage_of_before_a_lot_begins_is_not_covered_by_it():
    begins = NOVEMBER + 30 * DAY
    later = [lot("december", effective_from=begins)]
    assert used(later, [charge(1, begins - timedelta(microseconds=1))]) == {}
    assert used(later, [charge(1, begins)]) == {"december": 1}


@pytest.mark.scenario(78)
def test_a_lot_with_a_scope_pays_only_for_its_models():
    scoped = [lot("large", models=("large",))]
    assert used(scoped, [charge(1, model="small"), charge(2, model="large"), charge(4, model=None)]) == {"large": 2}


def test_what_promotional_credit_does_not_pay_is_left_to_paid_credit_and_the_amount_due():
    result = burn([lot("paid", 2), lot("gift", 1, kind="promotional")], [charge(4)])
    assert [each.amount_nanos for each in result.not_paid_by("promotional")] == [2 * DOLLAR, DOLLAR]


def test_uses_are_cut_to_whole_cents_from_the_last_lot_on():
    uses = [
        CreditUse(lot_id=name, kind="paid", amount_nanos=amount) for name, amount in (("a", 15), ("b", 3), ("c", 4))
    ]
    assert [(each.lot_id, each.amount_nanos) for each in without_rest(uses, 10)] == [("a", 15), ("b", 3), ("c", 2)]
    assert [(each.lot_id, each.amount_nanos) for each in without_rest(uses[:2], 10)] == [("a", 10)]
    assert without_rest([uses[2]], 10) == []


_MOMENTS = st.integers(0, 40).map(lambda hours: NOVEMBER + timedelta(hours=hours))
_MODELS = st.sampled_from(["small", "large"])


@st.composite
def _lots(draw) -> list[BurnableLot]:
    return [
        BurnableLot(
            id=f"crl_{number}",
            kind=draw(st.sampled_from(["paid", "promotional"])),
            priority=draw(st.integers(0, 2)),
            effective_from=(begins := draw(_MOMENTS)),
            expires_at=draw(
                st.none() | st.integers(1, 30).map(lambda hours, begins=begins: begins + timedelta(hours=hours))
            ),
            models=draw(st.sampled_from([(), ("small",), ("large",), ("large", "small")])),
            left_nanos=draw(st.integers(0, 100)),
        )
        for number in range(draw(st.integers(0, 6)))
    ]


_CHARGES = st.lists(
    st.builds(DatedCharge, at=_MOMENTS, model=st.none() | _MODELS, amount_nanos=st.integers(0, 100)), max_size=12
)


def _same(result) -> tuple:
    return result.uses, result.uncovered_nanos


@given(_lots(), _CHARGES, st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_the_order_in_which_things_are_recorded(lots, charges, random):
    mixed_lots, mixed_charges = list(lots), list(charges)
    random.shuffle(mixed_lots)
    random.shuffle(mixed_charges)
    assert _same(burn(mixed_lots, mixed_charges)) == _same(burn(lots, charges))


@given(_lots(), _CHARGES)
def test_no_lot_pays_more_than_it_has_and_every_charge_is_paid_once(lots, charges):
    result = burn(lots, charges)
    left = {each.id: each.left_nanos for each in lots}
    assert all(0 < use.amount_nanos <= left[use.lot_id] for use in result.uses)
    paid = sum(use.amount_nanos for use in result.uses)
    assert paid + result.uncovered_nanos == sum(each.amount_nanos for each in charges)
    for part in result.parts:
        assert part.lot is None or part.lot.covers(part.charge.at, part.charge.model)


@given(_lots(), _CHARGES)
def test_nothing_stays_uncovered_while_a_lot_that_covers_it_has_credit(lots, charges):
    result = burn(lots, charges)
    rest = {each.id: each.left_nanos for each in lots}
    for use in result.uses:
        rest[use.lot_id] -= use.amount_nanos
    for part in result.parts:
        if part.lot is None:
            assert not [each.id for each in lots if rest[each.id] and each.covers(part.charge.at, part.charge.model)]


@given(_lots(), _CHARGES, st.integers(1, 5))
def test_charges_recorded_in_pieces_burn_like_the_whole(lots, charges, pieces):
    split = [
        msgspec.structs.replace(each, amount_nanos=each.amount_nanos // pieces + (number < each.amount_nanos % pieces))
        for each in charges
        for number in range(pieces)
    ]
    assert _same(burn(lots, split)) == _same(burn(lots, charges))


@given(_lots(), _CHARGES, st.integers(0, 12))
def test_burning_a_first_part_in_time_and_then_the_rest_is_burning_all(lots, charges, number):
    """A period may be invoiced in two parts: the lots end the same."""
    ordered = sorted(charges, key=lambda each: (each.at, each.model or ""))
    first, rest = ordered[:number], ordered[number:]
    taken = {use.lot_id: use.amount_nanos for use in burn(lots, first).uses}
    remaining = [msgspec.structs.replace(each, left_nanos=each.left_nanos - taken.get(each.id, 0)) for each in lots]
    for use in burn(remaining, rest).uses:
        taken[use.lot_id] = taken.get(use.lot_id, 0) + use.amount_nanos
    assert taken == {use.lot_id: use.amount_nanos for use in burn(lots, ordered).uses}


@given(_lots(), _CHARGES)
def test_promotional_lots_with_only_what_they_paid_pay_the_same_charges_again(lots, charges):
    """So the rest that paid credit pays after tax can be computed after promotional credit was posted."""
    whole = burn(lots, charges)
    paid_by = {use.lot_id: use.amount_nanos for use in whole.uses}
    again = [
        msgspec.structs.replace(each, left_nanos=paid_by.get(each.id, 0)) if each.kind == "promotional" else each
        for each in lots
    ]
    assert burn(again, charges).not_paid_by("promotional") == whole.not_paid_by("promotional")
