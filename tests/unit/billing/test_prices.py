"""The price in force at an instant is that of the tenant's plan at that instant."""

from datetime import timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.models import PlanAssignment
from billing.periods import EPOCH
from billing.prices import PriceBook
from billing.views import PriceView
from core import clock
from core.contracts.grants import Prices
from tests.fixtures.quota.levels import event

FREE = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
HOURS = st.integers(0, 50)


def at(hours: int):
    return EPOCH + timedelta(hours=hours)


def version(plan_id: str, hours: int) -> PriceView:
    return PriceView(id=f"{plan_id}@{hours}", plan_id=plan_id, prices=FREE, effective_from=at(hours), created_at=EPOCH)


def assignment(plan_id: str, hours: int) -> PlanAssignment:
    return PlanAssignment(tenant_id="tn", plan_id=plan_id, effective_from=at(hours), created_at=EPOCH)


@given(
    st.dictionaries(HOURS, st.sampled_from(["a", "b", "c"]), max_size=6),
    st.dictionaries(st.sampled_from(["a", "b"]), st.sets(HOURS, max_size=6)),
    HOURS,
)
def test_the_price_in_force_equals_a_slow_reference(assigned, priced, hours):
    book = PriceBook(
        {"tn": [assignment(plan_id, since) for since, plan_id in sorted(assigned.items())]},
        {plan_id: [version(plan_id, since) for since in sorted(begins)] for plan_id, begins in priced.items()},
    )
    held = [since for since in assigned if since <= hours]
    begins = [since for since in priced.get(assigned[max(held)], ()) if since <= hours] if held else []
    found = book.in_force("tn", at(hours))
    assert (found and found.id) == (f"{assigned[max(held)]}@{max(begins)}" if begins else None)


def test_an_unknown_tenant_has_no_price():
    assert PriceBook({}, {}).in_force("tn", EPOCH) is None


def test_a_price_is_in_force_from_its_exact_instant():
    book = PriceBook({"tn": [assignment("a", 0)]}, {"a": [version("a", 1), version("a", 2)]})
    assert book.in_force("tn", at(2) - timedelta(microseconds=1)).id == "a@1"
    assert book.in_force("tn", at(2)).id == "a@2"
    assert book.in_force("tn", at(0)) is None


def test_a_request_is_charged_by_its_admissions_price_version_if_its_tenant_had_it():
    book = PriceBook(
        {"tn": [assignment("a", 0), assignment("b", 3)], "other": [assignment("c", 0)]},
        {name: [version(name, 0), version(name, 5)] for name in "abc"},
    )

    def charged(price_version_id: str | None) -> str:
        said = event("req", "tn")
        at_ms = clock.to_ms(at(6))
        return book.of(msgspec.structs.replace(said, price_version_id=price_version_id, settled_at_ms=at_ms)).id

    assert charged("a@5") == "a@5"  # the tenant's plan when the request began
    assert charged("b@0") == "b@0"  # the price of that time
    assert {charged("c@0"), charged("nothing"), charged(None)} == {"b@5"}
