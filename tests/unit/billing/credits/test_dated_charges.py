"""What of an invoice is owed for which instant and model."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from billing.charges.inputs import Adjusted
from billing.credits.dated_charges import UsageSlice, charges_of_lines, charges_so_far

START = datetime(2026, 11, 1, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
LAST = END - timedelta(microseconds=1)


class Line(NamedTuple):
    kind: str
    base_model: str | None
    amount_nanos: int


def at(hours: int, model: str, amount: int) -> UsageSlice:
    return UsageSlice(at=START + timedelta(hours=hours), model=model, amount_nanos=amount)


def owed(charges) -> list[tuple]:
    return [(each.at, each.model, each.amount_nanos) for each in charges]


def test_usage_is_dated_by_when_it_settled_and_fees_by_the_last_instant():
    slices = [at(1, "small", 30), at(2, "large", 50), at(5, "small", 10)]
    lines = [
        Line("output_tokens", "small", 40), Line("output_tokens", "large", 50), Line("base_fee", None, 20),
    ]  # fmt: skip
    assert owed(charges_of_lines(slices, lines, END)) == [
        (START + timedelta(hours=2), "large", 50),
        (START + timedelta(hours=1), "small", 30),
        (START + timedelta(hours=5), "small", 10),
        (LAST, None, 20),
    ]


def test_a_discount_lowers_every_charge_in_proportion():
    slices = [at(1, "small", 600), at(2, "small", 400)]
    lines = [Line("output_tokens", "small", 1_000), Line("discount", None, -100)]
    assert [each.amount_nanos for each in charges_of_lines(slices, lines, END)] == [540, 360]


def test_a_tier_over_all_models_is_shared_by_what_each_model_lacks():
    slices = [at(1, "large", 300), at(1, "small", 100)]
    lines = [Line("uncached_input_tokens", "large", 100), Line("output_tokens", None, 240)]
    assert [(each.model, each.amount_nanos) for each in charges_of_lines(slices, lines, END)] == [
        ("large", 260), ("small", 80),
    ]  # fmt: skip


def test_a_storage_fee_of_a_model_without_usage_is_dated_at_the_end():
    assert owed(charges_of_lines([], [Line("adapter_storage", "small", 7)], END)) == [(LAST, "small", 7)]


def test_an_invoice_of_nothing_or_less_has_no_charges():
    assert (
        charges_of_lines([at(1, "small", 5)], [Line("output_tokens", "small", 5), Line("coupon", None, -5)], END) == []
    )
    assert charges_of_lines([], [Line("proration", None, -5)], END) == []


def test_usage_so_far_is_lowered_by_what_was_adjusted():
    slices = [at(1, "small", 60), at(2, "large", 40), at(3, "small", -10)]
    assert [each.amount_nanos for each in charges_so_far(slices, Adjusted(-45, 0), END)] == [27, 18]
    assert [each.amount_nanos for each in charges_so_far(slices, Adjusted(-40, -5), END)] == [27, 18]
    assert charges_so_far(slices, Adjusted(-500, 0), END) == []
    assert owed(charges_so_far(slices[:1], Adjusted(0, 20), END)) == [(slices[0].at, "small", 60), (END, None, 20)]


_SLICES = st.lists(
    st.builds(at, st.integers(0, 700), st.sampled_from(["small", "large"]), st.integers(1, 10**12)), max_size=20
)


@given(_SLICES, st.integers(0, 10**9), st.integers(-(10**12), 0))
def test_the_charges_are_the_sum_of_the_lines(slices, fee, discount):
    models = {each.model for each in slices}
    lines = [
        *(
            Line("output_tokens", model, sum(each.amount_nanos for each in slices if each.model == model))
            for model in sorted(models)
        ),
        Line("base_fee", None, fee),
        Line("discount", None, discount),
    ]
    total = sum(line.amount_nanos for line in lines)
    assert sum(each.amount_nanos for each in charges_of_lines(slices, lines, END)) == max(0, total)
