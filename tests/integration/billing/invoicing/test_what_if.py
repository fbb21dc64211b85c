"""A simulation equals a close on the other prices, and changes nothing."""

import threading

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from billing.invoicing import what_if as simulation
from billing.invoicing.what_if import simulate
from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.subscriptions import assignments
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.ids import new_id
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


price = st.just(0) | st.integers(2, 3_000)  # half of one nanodollar would be free, which a card refuses
cards = st.builds(
    PriceCard,
    input_nanos=price,
    cached_input_nanos=price,
    output_nanos=price,
    kv_page_second_nanos=price,
    batch_factor_permille=st.sampled_from([None, 500]),
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
    st.tuples(
        st.integers(0, 50), st.integers(0, 5_000), st.sampled_from([None, "ad_1"]), st.sampled_from(["default", "flex"])
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.scenario(186)
@examples(10, quick=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cards, cards, uses)
def test_a_simulation_equals_what_the_same_usage_costs_on_a_plan_with_that_card(stage, now, then, used):
    def bill(card: PriceCard) -> str:
        tenant = stage.tenant(card=card)
        stage.bill(
            *(
                stage.event(
                    tenant, output_tokens=tokens, kv_page_ms=page_ms, adapter_id=adapter_id, service_tier=service_tier
                )
                for tokens, page_ms, adapter_id, service_tier in used
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


def in_the_middle(monkeypatch, act) -> None:
    """Do something when the second tenant's usage is read."""
    read_used, calls = simulation.read_used, []

    def read(session, tenant_id, *arguments, **more):
        calls.append(tenant_id)
        if len(calls) == 2:
            act(session)
        return read_used(session, tenant_id, *arguments, **more)

    monkeypatch.setattr(simulation, "read_used", read)


@pytest.fixture
def plan(stage) -> str:
    """A plan with three tenants that used something."""
    first = stage.tenant()
    plan_id = stage.plan_of(first)
    tenants = [first, new_id("tn"), new_id("tn")]
    with unit_of_work(stage.engine) as session:
        for tenant in tenants[1:]:
            assignments.assign_plan(session, tenant_id=tenant, plan_id=plan_id)
    stage.bill(*(stage.event(tenant, output_tokens=1_000_000) for tenant in tenants))
    return plan_id


def simulated(stage, plan: str):
    start = stage.value("SELECT min(settled_at) FROM usage_records")
    card = msgspec.structs.replace(CARD, output_nanos=700)
    with unit_of_work(stage.engine) as session:
        return simulate(session, plan_id=plan, card=card, start=start, end=stage.now(), after="", limit=10)


@pytest.mark.scenario(187)
def test_a_simulation_that_is_stopped_in_the_middle_leaves_nothing_behind(stage, plan, monkeypatch):
    before = [stage.rows(f"SELECT * FROM {table}") for table in TABLES]

    def stop(session) -> None:
        pid = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        stage.value("SELECT pg_terminate_backend(:pid)", pid=pid)

    with monkeypatch.context() as stopped:
        in_the_middle(stopped, stop)
        with pytest.raises(sa.exc.OperationalError):
            simulated(stage, plan)
    assert [stage.rows(f"SELECT * FROM {table}") for table in TABLES] == before
    assert [each.simulated_nanos - each.amount_nanos for each in simulated(stage, plan)] == [100_000_000] * 3


@pytest.mark.scenario(187)
def test_a_close_runs_beside_a_simulation_and_neither_changes_the_other(stage, plan, monkeypatch):
    expected = [(each.amount_nanos, each.simulated_nanos) for each in simulated(stage, plan)]
    closed = []

    def close(_session) -> None:
        closer = threading.Thread(target=lambda: closed.extend(stage.close()))
        closer.start()
        closer.join()

    with monkeypatch.context() as beside:
        in_the_middle(beside, close)
        found = [(each.amount_nanos, each.simulated_nanos) for each in simulated(stage, plan)]
    assert found == expected
    assert sorted(invoice.amount_nanos for invoice in closed) == sorted(amount for amount, _ in expected)
