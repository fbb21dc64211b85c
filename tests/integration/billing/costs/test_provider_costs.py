"""What outside providers charge: stored once beside each record, in margins, and in no comparison with engines."""

import msgspec
import pytest

from billing.costs import owned_costs, report
from billing.costs.break_even import ChargedOutside
from billing.reconciliation.engine_check import check_engines
from billing.reconciliation.totals import reconcile
from core.contracts.replicas import OUTSIDE
from core.contracts.usage import REST, TokenCosts
from core.db import database_now, unit_of_work

COSTS = TokenCosts(input_nanos=100, cached_input_nanos=10, output_nanos=400)
CHARGED = (100 - 32) * 100 + 32 * 10 + 20 * 400  # of the stage's event
REPLICA = f"{OUTSIDE}1.acme-mini"


def used(costs, tenant: str, **changes):
    at_ms = costs.hour_ms + 60_000
    given = {"base_model": "acme-mini", "replica_id": REPLICA, "token_costs": COSTS, "settled_at_ms": at_ms}
    return costs.stage.event(tenant, kv_page_ms=0, kv_measured=True, **given | changes)


@pytest.fixture
def tenant(costs) -> str:
    (found,) = costs.tenants(1)
    return found


def reported(costs, group_by: str):
    period = {"start": costs.at(0), "end": costs.at(1)}
    with unit_of_work(costs.engine) as session:
        return report.report(session, **period, group_by=group_by, settings=costs.settings)


def test_a_cost_is_stored_once_with_the_record(costs, tenant):
    event = used(costs, tenant, counted_here=True)
    costs.stage.bill(event, event)
    costs.stage.bill(event)
    (row,) = costs.stage.rows("SELECT * FROM provider_costs")
    assert (row["request_id"], row["cost_nanos"], row["counted_here"]) == (event.request_id, CHARGED, True)
    assert costs.stage.value("SELECT count(*) FROM usage_records") == 1


def stored(costs) -> list[tuple]:
    rows = costs.stage.rows("SELECT * FROM provider_costs ORDER BY request_id")
    return [(row["request_id"], row["cost_nanos"], row["cached_tokens"], row["counted_here"]) for row in rows]


def test_the_exact_cost_of_a_request_replaces_that_of_its_estimate(costs, tenant):
    """The tenant's estimate takes the whole prompt as cached; the provider charges nothing as cached that it has not
    reported.
    """
    estimate = used(
        costs, tenant, outcome="gateway_gone", estimated=True, cached_tokens=100, output_tokens=5, counted_here=True
    )
    exact = msgspec.structs.replace(
        estimate, outcome="done", estimated=False, cached_tokens=32, output_tokens=20, counted_here=False
    )
    costs.stage.bill(estimate)
    assert stored(costs) == [(estimate.request_id, 100 * 100 + 5 * 400, 100, True)]
    costs.stage.bill(exact, exact)
    costs.stage.bill(estimate)
    assert stored(costs) == [(estimate.request_id, CHARGED, 32, False)]
    ids = costs.stage.rows("SELECT request_id FROM usage_records ORDER BY request_id")
    assert [row["request_id"] for row in ids] == [estimate.request_id, estimate.request_id + REST]


def test_an_exact_event_that_charges_nothing_further_has_the_exact_cost(costs, tenant):
    estimate = used(costs, tenant, outcome="gateway_gone", estimated=True, cached_tokens=100, counted_here=True)
    exact = msgspec.structs.replace(estimate, outcome="done", estimated=False, cached_tokens=32, counted_here=False)
    costs.stage.bill(estimate, exact)
    assert stored(costs) == [(estimate.request_id, CHARGED, 32, False)]


def test_what_no_tenant_is_charged_for_has_a_cost_at_its_provider(costs, tenant):
    event = used(costs, tenant, outcome="yielded", request_id="req_1:yielded1")
    costs.stage.bill(event, event)
    costs.stage.bill(event)
    assert stored(costs) == [("req_1:yielded1", CHARGED, 32, False)]
    assert costs.stage.value("SELECT count(*) FROM usage_records") == 0
    (row,) = reported(costs, "tenant").rows
    assert (row.key, row.revenue_nanos, row.cost_nanos) == (tenant, 0, CHARGED)


@pytest.mark.parametrize("group_by", ["tenant", "model", "plan"])
def test_margins_come_from_what_was_charged_and_what_the_provider_charged(costs, tenant, group_by):
    costs.stage.bill(used(costs, tenant), used(costs, tenant))
    found = reported(costs, group_by)
    (row,) = found.rows
    assert row.key == {"tenant": tenant, "model": "acme-mini", "plan": costs.stage.plan_of(tenant)}[group_by]
    assert (row.cost_nanos, row.absorbed_cost_nanos, found.total_nanos) == (2 * CHARGED,) * 3
    assert row.margin_nanos == row.revenue_nanos - 2 * CHARGED


def test_a_provider_that_charges_nothing_has_a_margin_too(costs, tenant):
    free = TokenCosts(input_nanos=0, cached_input_nanos=0, output_nanos=0)
    costs.stage.bill(used(costs, tenant, token_costs=free))
    (row,) = reported(costs, "model").rows
    assert (row.cost_nanos, row.margin_nanos) == (0, row.revenue_nanos)


def test_the_model_that_is_compared_counts_like_our_own_and_has_the_most_tokens(costs, tenant):
    own = costs.stage.event(tenant).base_model
    for model in ("acme-mini", "acme-large", "acme-unused"):
        costs.stage.force(
            "INSERT INTO provider_models VALUES (:model, 'prv_1', 'm', :own, 20, 100, 10, 400)", model=model, own=own
        )
    costs.stage.bill(
        used(costs, tenant), used(costs, tenant), used(costs, tenant, base_model="acme-large"), used(costs, tenant)
    )
    period = {"start": costs.at(0), "end": costs.at(1)}
    with unit_of_work(costs.engine) as session:
        found = owned_costs.charged_outside(session, owned_costs.costs_at_providers(session, **period))
    assert found == {own: ChargedOutside(base_model="acme-mini", nanos=3 * CHARGED, tokens=3 * 120)}


def test_a_tenants_cost_has_what_providers_charged_for_it(costs, tenant):
    costs.stage.bill(used(costs, tenant))
    with unit_of_work(costs.engine) as session:
        assert owned_costs.costs_of_tenants(session, [tenant], since=costs.at(0)) == {tenant: CHARGED}
        assert owned_costs.costs_of_tenants(session, [tenant], since=costs.at(1)) == {tenant: 0}


def test_no_engine_has_to_have_counted_it(costs, tenant):
    costs.stage.bill(used(costs, tenant), used(costs, tenant, base_model=costs.stage.event(tenant).base_model))
    with unit_of_work(costs.engine) as session:
        check = check_engines(session, None, settled_before=database_now(session))
        found = reconcile(session, costs.redis)
    assert (check.differences, check.totals.ledger_tokens) == ([], 0)
    assert (found.drift_tokens, found.engine_tokens) == (0, 0)
    assert found.provider_tokens == found.ledger_tokens == 2 * 120
