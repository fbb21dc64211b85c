"""Revenue in the report: usage and resources beside their cost, the rest of an account in a row of its own, and all of
it together what the ledger has.
"""

from datetime import timedelta

import msgspec
import pytest

from billing.costs import report
from billing.costs.revenue import ACCOUNT
from billing.costs.settings import CostSettings
from billing.invoicing import credit_notes, endings
from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.subscriptions import discounts
from billing.subscriptions.discounts import NewDiscount
from billing.usage import amendments
from billing.usage.amendments import AmendedQuantities
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.periods import bucket_start
from tests.fixtures.wallet import DOLLAR
from tests.integration.billing.resources.conftest import ResourceStage

HOUR = timedelta(hours=1)
DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_000, output_nanos=600_000, kv_page_second_nanos=1_000_000)
CARD = msgspec.structs.replace(
    PriceCard.of_all_models(DEAR),
    adapter_storage_gb_hour_nanos=100_000,
    pinned_slot_hour_nanos=50_000_000,
    cold_load_nanos=200_000,
    base_fee_nanos=7_000_000_000,
    tiers=(
        TieredPrice(
            quantity="output_tokens",
            mode="graduated",
            tiers=(PriceTier(up_to=1_000, unit_price_nanos=600_000), PriceTier(up_to=None, unit_price_nanos=500_000)),
        ),
    ),
)


@pytest.fixture
def resources(stage) -> ResourceStage:
    return ResourceStage(stage)


@pytest.fixture
def earned(resources):
    """Two tenants with usage, storage, pins, a cold load, a base fee, tiers and a discount, all posted."""
    stage, found = resources.stage, {}
    for name in ("a", "b"):
        tenant = resources.tenant(CARD)
        adapter = resources.adapter(tenant)
        resources.revision(tenant, adapter, 2_000_000_000, ready_at=resources.hour)
        resources.pin(tenant, adapter, resources.hour + HOUR)
        resources.serve(tenant, adapter, "store", at=resources.hour + HOUR / 2, revision_id=f"rev_{name}")
        resources.serve(tenant, adapter, "slot", at=resources.hour + HOUR, output_tokens=5_000)
        stage.bill(stage.event(tenant, output_tokens=2_000))
        found[name] = (tenant, adapter)
    with unit_of_work(stage.engine) as session:
        discounts.grant(session, found["a"][0], NewDiscount(name="Launch", percent_hundredths=1_000))
    resources.meter()
    for tenant, _ in found.values():
        resources.runner().adjust_tenant(tenant)
    return found


def ledger_revenue(stage) -> int:
    return stage.value(
        "SELECT -coalesce(sum(e.amount_nanos), 0)::bigint FROM entries e JOIN accounts a ON a.id = e.account_id"
        " WHERE a.kind = 'revenue'"
    )


def reported(resources, group_by: str):
    start = bucket_start(resources.hour, "1d") - timedelta(days=1)
    with unit_of_work(resources.engine) as session:
        return report.report(
            session,
            start=start,
            end=start + timedelta(days=4),
            group_by=group_by,
            settings=CostSettings(),
            include_open_hours=True,
        )


def check_sums(resources) -> None:
    """Every grouping adds up to the revenue of the ledger."""
    for group_by in ("tenant", "adapter", "model", "plan"):
        found = reported(resources, group_by)
        assert found.revenue_nanos == ledger_revenue(resources.stage), group_by
        assert sum(row.revenue_nanos for row in found.rows) == found.revenue_nanos
        for row in found.rows:
            assert row.revenue_nanos == row.usage_nanos + row.resource_nanos + row.account_nanos
            has_usage = row.usage_nanos != 0  # of a model without a replica that has a rate
            assert row.margin_nanos == (None if has_usage else row.revenue_nanos - row.cost_nanos)


def test_an_adapters_storage_pins_and_cold_load_are_its_revenue(resources, earned):
    rows = {row.key: row for row in reported(resources, "adapter").rows}
    storage, pins, loads = 4 * 2 * 100_000, 3 * 50_000_000, 200_000
    for _, adapter in earned.values():
        assert rows[adapter].resource_nanos == storage + pins + loads
        assert (rows[adapter].account_nanos, rows[adapter].output_tokens) == (0, 5_020)
    assert rows[""].resource_nanos == 0, "the base model's own usage"
    assert rows[ACCOUNT].usage_nanos == rows[ACCOUNT].resource_nanos == rows[ACCOUNT].output_tokens == 0


def test_what_belongs_to_no_adapter_is_a_row_of_its_own_and_belongs_to_its_tenant(resources, earned):
    account = {row.key: row.account_nanos for row in reported(resources, "adapter").rows}[ACCOUNT]
    tenants = {row.key: row.account_nanos for row in reported(resources, "tenant").rows}
    models = {row.key: row.account_nanos for row in reported(resources, "model").rows}
    a, b = earned["a"][0], earned["b"][0]
    assert account == models[ACCOUNT] == tenants[a] + tenants[b]
    assert tenants[a] < tenants[b], "the discount is the tenant's that has it"
    tiers = -(7_020 - 1_000) * 100_000
    fees = resources.stage.value(
        "SELECT sum(amount_nanos - usage_nanos)::bigint FROM usage_adjustments WHERE tenant_id = :t", t=b
    )
    assert fees > 0
    assert tenants[b] == fees + tiers


def test_amendments_notes_and_voids_change_revenue_as_the_ledger_does(resources, earned):
    stage, (tenant, _) = resources.stage, earned["a"]
    request = stage.value("SELECT max(request_id) FROM usage_records WHERE tenant_id = :t", t=tenant)
    with unit_of_work(stage.engine) as session:
        amendments.amend(session, request, AmendedQuantities(output_tokens=1), reason="a test", actor="key_1")
    check_sums(resources)
    made = {invoice.tenant_id: invoice.id for invoice in stage.close()}
    before = {row.key: row.account_nanos for row in reported(resources, "tenant").rows}
    with unit_of_work(stage.engine) as session:
        credit_notes.issue_credit_note(
            session, invoice_id=made[tenant], to="balance", reason="a test", amount_cents=100
        )
        endings.void_invoice(session, invoice_id=made[earned["b"][0]], reason="a test", write_off=True)
    after = {row.key: row for row in reported(resources, "tenant").rows}
    assert after[tenant].account_nanos < before[tenant]
    assert after[earned["b"][0]].margin_ppm is None or after[earned["b"][0]].revenue_nanos > 0
    check_sums(resources)


def test_what_promotional_credit_pays_is_no_revenue_before_and_after_its_invoice(resources, wallet):
    stage = resources.stage
    free, half = stage.tenant(), stage.tenant()
    wallet.granted(free, 10, kind="promotional")
    wallet.granted(half, 3, kind="promotional")
    for tenant in (free, half):
        wallet.spend(tenant, 6)

    def shown() -> dict[str, int]:
        return {row.key: row.revenue_nanos for row in reported(resources, "tenant").rows}

    assert shown() == {free: 0, half: 3 * DOLLAR}
    made = {invoice.tenant_id: invoice.id for invoice in stage.close()}
    assert shown() == {free: 0, half: 3 * DOLLAR}
    with unit_of_work(stage.engine) as session:
        endings.void_invoice(session, invoice_id=made[half], reason="a test")
    assert shown()[half] == 3 * DOLLAR, "its usage waits for the next invoice, which the credit pays"
    wallet.spend(free, 6)
    assert shown()[free] == 2 * DOLLAR
