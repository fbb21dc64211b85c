"""The price in force at an instant is that of the tenant's plan at that instant."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.prices.card import PriceCard
from billing.prices.models import PlanAssignment
from billing.prices.price_book import PriceBook, PriceView
from core import clock
from core.contracts.grants import Prices
from core.periods import EPOCH
from tests.fixtures.quota.levels import event

FREE = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
HOURS = st.integers(0, 50)


def at(hours: int):
    return EPOCH + timedelta(hours=hours)


def version(plan_id: str, hours: int) -> PriceView:
    return PriceView(
        id=f"{plan_id}@{hours}",
        plan_id=plan_id,
        card=PriceCard.of_all_models(FREE),
        effective_from=at(hours),
        created_at=EPOCH,
    )


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


DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def book_of_one_tenant() -> PriceBook:
    """Plan "a" from hour 0 to hour 300, then plan "b". Each plan has new prices at hour 100 and at hour 1,000."""
    return PriceBook(
        {"tn": [assignment("a", 0), assignment("b", 300)], "other": [assignment("c", 0)]},
        {name: [version(name, 0), version(name, 100), version(name, 1_000)] for name in "abc"},
    )


def charged(admitted: datetime, named: str | None) -> str:
    said = msgspec.structs.replace(
        event("req", "tn"),
        price_version_id=named,
        started_at_ms=clock.to_ms(admitted),
        settled_at_ms=clock.to_ms(admitted + timedelta(hours=5)),
    )
    return book_of_one_tenant().of(said, age_max=DAY).id


@pytest.mark.scenario(4)
def test_a_request_without_a_named_version_is_charged_by_the_version_at_its_admission():
    assert charged(at(100), None) == "a@100"
    assert charged(at(100) - timedelta(milliseconds=1), None) == "a@0"


def test_the_named_version_is_charged_while_it_was_in_force_or_shortly_after():
    assert charged(at(50), "a@0") == "a@0"
    assert charged(at(100) + timedelta(hours=23), "a@0") == "a@0"


@pytest.mark.scenario(6)
def test_a_version_that_was_replaced_long_ago_is_not_honored():
    assert charged(at(100) + timedelta(hours=25), "a@0") == "a@100"
    assert charged(at(100) + DAY, "a@0") == "a@100"
    assert charged(at(100) + DAY - timedelta(milliseconds=1), "a@0") == "a@0"
    assert charged(at(1_000) + timedelta(days=40), "b@100") == "b@1000"


@pytest.mark.scenario(7)
def test_a_version_that_begins_later_is_not_honored():
    assert charged(at(999), "b@1000") == "b@100"


@pytest.mark.scenario(8)
def test_a_version_of_a_plan_that_the_tenant_left_is_honored_for_a_while():
    assert charged(at(300) + 5 * MINUTE, "a@100") == "a@100"
    assert charged(at(300) + timedelta(days=30), "a@100") == "b@1000"


def test_a_version_of_a_plan_that_the_tenant_never_had_is_not_honored():
    assert charged(at(50), "c@0") == "a@0"
    assert charged(at(50), "nothing") == "a@0"
