"""A simulation equals a close on the other prices, and changes nothing."""

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.simulation.what_if import simulate
from core.contracts.grants import Prices
from core.db import unit_of_work
from tests.fixtures.examples import examples
from tests.integration.billing.conftest import PRICES

CARD = PriceCard.of_all_models(PRICES)
TABLES = ("usage_records", "usage_hours", "usage_adjustments", "transfers", "entries", "invoices", "price_versions")


def what_if(stage, tenant: str, card: PriceCard):
    start = stage.value("SELECT min(settled_at) FROM usage_records WHERE tenant_id = :t", t=tenant)
    with unit_of_work(stage.engine) as session:
        (found,) = simulate(
            session, plan_id=stage.plan_of(tenant), card=card, start=start, end=stage.now(), after="", limit=10
        )
    return found


@pytest.mark.scenario(184)
def test_a_dearer_output_token_costs_its_difference_for_each_token_and_changes_nothing(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant, output_tokens=10_000_000), stage.event(tenant, adapter_id="ad_1", output_tokens=5))
    before = [stage.rows(f"SELECT * FROM {table}") for table in TABLES]
    found = what_if(stage, tenant, msgspec.structs.replace(CARD, output_nanos=700))
    assert found.simulated_nanos - found.amount_nanos == 1_000_000_500
    differing = [(line.kind, line.adapter_id) for line in found.lines if line.amount_nanos != line.simulated_nanos]
    assert differing == [("output_tokens", None), ("output_tokens", "ad_1")]
    assert [stage.rows(f"SELECT * FROM {table}") for table in TABLES] == before


price = st.integers(0, 3_000)
cards = st.builds(
    PriceCard,
    input_nanos=price,
    cached_input_nanos=price,
    output_nanos=price,
    kv_page_second_nanos=price,
    tiers=st.sampled_from(
        [
            (),
            (
                TieredPrice(
                    quantity="output_tokens",
                    mode="graduated",
                    tiers=(PriceTier(up_to=30, unit_price_nanos=7), PriceTier(up_to=None, unit_price_nanos=3)),
                ),
            ),
        ]
    ),
)
uses = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 5_000), st.sampled_from([None, "ad_1"])), min_size=1, max_size=8
)


@pytest.mark.scenario(186)
@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cards, cards, uses)
def test_a_simulation_equals_what_the_same_usage_costs_on_a_plan_with_that_card(stage, now, then, used):
    def bill(card: PriceCard) -> str:
        tenant = stage.tenant(card=card)
        stage.bill(
            *(
                stage.event(tenant, output_tokens=tokens, kv_page_ms=page_ms, adapter_id=adapter_id)
                for tokens, page_ms, adapter_id in used
            )
        )
        return tenant

    simulated = what_if(stage, bill(now), then)
    real = what_if(stage, bill(then), then)
    assert simulated.simulated_nanos == real.amount_nanos == real.simulated_nanos
    closed = {invoice.tenant_id: invoice.amount_nanos for invoice in stage.close()}
    assert closed[simulated.tenant_id] == simulated.amount_nanos
    assert closed[real.tenant_id] == real.amount_nanos


def test_only_versions_of_the_plan_are_replaced(stage):
    tenant, other = stage.tenant(), stage.tenant()
    stage.bill(stage.event(tenant), stage.event(other))
    start = stage.value("SELECT min(settled_at) FROM usage_records")
    with unit_of_work(stage.engine) as session:
        found = simulate(
            session,
            plan_id=stage.plan_of(tenant),
            card=PriceCard.of_all_models(
                Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
            ),
            start=start,
            end=stage.now(),
            after="",
            limit=10,
        )
    assert [(each.tenant_id, each.simulated_nanos) for each in found] == [(tenant, 0)]
