"""Fees, included usage, discounts and calendars on invoices and on the ledger, over several closes."""

from collections import Counter
from datetime import datetime, timedelta

import msgspec
import pytest

from billing.credits import lots
from billing.invoicing import closing
from billing.invoicing.schedule import PeriodSchedule
from billing.invoicing.what_if import simulate
from billing.prices import overrides
from billing.prices.card import IncludedUsage, PriceCard, PriceTier, TieredPrice
from billing.quotas.adjustment_runner import AdjustmentRunner
from billing.subscriptions import assignments, calendars, discounts
from billing.subscriptions.billed_until import billed_until_of
from billing.subscriptions.discounts import NewDiscount
from billing.usage.metering import ActiveTenants
from core import clock
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.periods import Period
from tests.integration.billing.conftest import PRICES, month_start

CARD = PriceCard.of_all_models(PRICES)
DOLLAR = 1_000_000_000
NO_GRACE = timedelta(0)
DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_000, output_nanos=600_000, kv_page_second_nanos=1_000_000)


def card(**changes) -> PriceCard:
    return msgspec.structs.replace(CARD, **changes)


def joined(stage, tenant: str, at: datetime) -> None:
    """Move the tenant's first plan, and what was granted to it, back to an instant."""
    for table, column in (("plan_assignments", "created_at"), ("discounts", "effective_from")):
        stage.force(f"UPDATE {table} SET {column} = :at WHERE tenant_id = :t", at=at, t=tenant)


def amounts(stage, tenant: str) -> list[tuple[datetime, str, int]]:
    """The lines of a tenant that are no usage: the start of the invoice's period, kind and nanodollars."""
    rows = stage.rows(
        "SELECT i.period_start, l.kind, l.amount_nanos FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id"
        " WHERE i.tenant_id = :t AND l.unit = 'amount' ORDER BY i.period_start, l.position",
        t=tenant,
    )
    return [(row["period_start"], row["kind"], row["amount_nanos"]) for row in rows]


def test_included_usage_is_corrected_on_the_ledger_and_free_on_the_invoice(stage):
    pool = IncludedUsage(quantity="output_tokens", units=1_000)
    tenant = stage.tenant(card=card(included=(pool,)))
    joined(stage, tenant, month_start(stage.now(), ago=0))
    stage.bill(stage.event(tenant, output_tokens=700, kv_page_ms=0, input_tokens=0, cached_tokens=0))
    runner = AdjustmentRunner(stage.engine, stage.redis, ActiveTenants(), price_age_max=timedelta(days=1))
    assert stage.balance("usage_unbilled", tenant) == 700 * 600
    assert runner.adjust_tenant(tenant)
    assert stage.balance("usage_unbilled", tenant) == 0
    assert not runner.adjust_tenant(tenant)
    stage.close()
    stage.bill(stage.event(tenant, output_tokens=400, kv_page_ms=0, input_tokens=0, cached_tokens=0))
    (second,) = stage.close()
    assert second.amount_nanos == 100 * 600  # the pool is of the month, not of the invoice
    lines = stage.invoice(second.id).lines
    assert [(line.quantity, line.unit_price_nanos) for line in lines] == [(300, 0), (100, 600)]
    assert stage.reconcile().ledger_drift_nanos == 0
    assert stage.reconcile().unbilled_tokens == 0


def test_a_close_without_anything_to_invoice_leaves_the_period_open(stage):
    tenant = stage.tenant()
    with unit_of_work(stage.engine) as session:
        grant = NewDiscount(name="partner", percent_hundredths=5_000, duration="periods", periods=1)
        discounts.grant(session, tenant, grant)
    until = stage.now()
    for _ in range(2):
        assert stage.close(until) == []
    assert stage.value("SELECT count(*) FROM period_states") == 0
    stage.bill(stage.event(tenant, output_tokens=1_000_000))
    recorded = stage.value("SELECT sum(amount_nanos) FROM usage_records")
    (invoice,) = stage.close()
    assert invoice.amount_nanos == recorded - recorded // 2
    assert stage.value("SELECT count(*) FROM period_states") == 1


def test_a_percentage_is_not_counted_as_less_spending(stage):
    tenant = stage.tenant()
    with unit_of_work(stage.engine) as session:
        discounts.grant(session, tenant, NewDiscount(name="partner", percent_hundredths=1_000))
    stage.bill(stage.event(tenant))
    recorded = stage.value("SELECT sum(amount_nanos) FROM usage_records")
    (invoice,) = stage.close()
    assert invoice.amount_nanos == recorded - recorded // 10
    assert stage.value("SELECT sum(amount_nanos) FROM usage_months") == recorded
    assert stage.reconcile().ledger_drift_nanos == 0


@pytest.mark.scenario(48)
def test_a_new_zone_holds_from_the_next_period_and_no_instant_is_billed_twice(stage):
    tenant = stage.tenant(DEAR)  # each period costs more than a cent, so none is carried to the next
    now = stage.now()
    last, this = month_start(now, ago=1), month_start(now, ago=0)
    joined(stage, tenant, last)
    stage.force("INSERT INTO tenant_calendars VALUES (:t, :at, now(), 'week', 'Asia/Tokyo', NULL)", t=tenant, at=this)
    with unit_of_work(stage.engine) as session:
        history = calendars.calendars_of(session, tenant)
        assert history.at(last).interval == "month"
        assert history.at(now).zone == "Asia/Tokyo"
    for hour in range(0, 40 * 24, 6):
        settled = last + timedelta(hours=hour)
        if settled < now:
            stage.publish(stage.event(tenant, settled_at_ms=clock.to_ms(settled), output_tokens=1_000_000))
    stage.drain()
    PeriodSchedule(stage.engine, grace=NO_GRACE).run_once()
    stage.close()
    periods = stage.rows("SELECT period_start, period_end FROM invoices WHERE tenant_id = :t ORDER BY 1", t=tenant)
    assert [row["period_start"] for row in periods[1:]] == [row["period_end"] for row in periods[:-1]]
    assert periods[0]["period_end"] == this
    assert periods[1]["period_end"] == history.period_at(this).end
    assert stage.reconcile().unbilled_tokens == 0
    used = stage.value("SELECT sum(input_tokens + output_tokens) FROM usage_records")
    assert stage.reconcile().invoiced_tokens == used


@pytest.mark.scenario(55)
def test_fifty_streams_that_run_during_a_plan_change_keep_the_version_of_their_admission(stage):
    """Gateways with an old snapshot still name the old version after the change; others name none."""
    tenant, other = stage.tenant(), stage.tenant(card=card(output_nanos=900))
    old = stage.value("SELECT id FROM price_versions WHERE plan_id = :p", p=stage.plan_of(tenant))
    admitted_ms = stage.ago_ms(seconds=5)
    with unit_of_work(stage.engine) as session:
        assignments.assign_plan(session, tenant_id=tenant, plan_id=stage.plan_of(other))
    changed = stage.value("SELECT max(effective_from) FROM plan_assignments WHERE tenant_id = :t", t=tenant)
    settled_ms = clock.to_ms(changed) + 1
    running = [
        stage.event(
            tenant, output_tokens=1, started_at_ms=admitted_ms, settled_at_ms=settled_ms, price_version_id=named
        )
        for named in (old, None)
        for _ in range(25)
    ]
    after = [
        stage.event(tenant, output_tokens=1, started_at_ms=settled_ms, settled_at_ms=settled_ms, price_version_id=named)
        for named in (old, *[None] * 9)
    ]
    stage.bill(*running, *after)
    stage.value("SELECT pg_sleep(0.005)")
    (invoice,) = stage.close()
    outputs = [line for line in stage.invoice(invoice.id).lines if line.kind == "output_tokens"]
    assert sorted((line.quantity, line.unit_price_nanos) for line in outputs) == [(9, 900), (51, 600)]
    assert len({line.price_version_id for line in outputs}) == 2
    assert stage.dead_letters() == []


def test_prices_of_a_tenants_own_rate_its_usage_until_they_end(stage):
    tenant = stage.tenant()
    with unit_of_work(stage.engine) as session:
        made = overrides.add(session, tenant_id=tenant, card=card(output_nanos=1))
    stage.bill(stage.event(tenant, output_tokens=10, started_at_ms=clock.now_ms() + 1))
    with unit_of_work(stage.engine) as session:
        overrides.end(session, tenant_id=tenant)
    stage.bill(stage.event(tenant, output_tokens=10, started_at_ms=clock.now_ms() + 1))
    rows = stage.rows("SELECT output_nanos, price_version_id FROM usage_records ORDER BY request_id")
    assert [row["output_nanos"] for row in rows] == [10, 6_000]
    assert rows[0]["price_version_id"] == made.price_version_id


@pytest.mark.scenario(186)
def test_a_simulation_has_fees_discounts_and_the_commitment_that_a_close_would_have(stage):
    drafted = card(
        output_nanos=700,
        base_fee_nanos=3 * DOLLAR,
        base_fee_when="advance",
        commitment_nanos=50 * DOLLAR,
        included=(IncludedUsage(quantity="output_tokens", units=5_000),),
    )
    start = month_start(stage.now(), ago=1)
    period = Period(start, month_start(stage.now(), ago=0))

    def tenant_on(price_card: PriceCard) -> str:
        tenant = stage.tenant(card=price_card)
        with unit_of_work(stage.engine) as session:
            discounts.grant(session, tenant, NewDiscount(name="partner", percent_hundredths=2_500))
        joined(stage, tenant, start)
        stage.bill(
            *(
                stage.event(tenant, output_tokens=900, settled_at_ms=clock.to_ms(start) + 1_000 * second)
                for second in range(20)
            )
        )
        return tenant

    tried, real = tenant_on(CARD), tenant_on(drafted)
    with unit_of_work(stage.engine) as session:
        (found,) = simulate(
            session, plan_id=stage.plan_of(tried), card=drafted, start=start, end=period.end, after="", limit=10
        )
    invoice = closing.close_tenant(stage.engine, real, period.end)
    assert found.simulated_nanos == invoice.amount_nanos == 50 * DOLLAR
    simulated, closed = Counter(), Counter()
    for line in found.lines:
        simulated[line.kind] += line.simulated_nanos
    for line in stage.invoice(invoice.id).lines:
        closed[line.kind] += line.amount_nanos
    assert simulated == closed
    assert {line.kind for line in found.lines} >= {"base_fee", "discount", "commitment", "output_tokens"}
    with unit_of_work(stage.engine) as session:
        assert billed_until_of(session, tried) is None


@pytest.mark.scenario(186)
def test_a_simulation_with_tiers_late_usage_credit_and_a_commitment_equals_a_close(stage):
    """Before credits and tax, which a simulation leaves out."""
    tiers = (PriceTier(up_to=6_000, unit_price_nanos=700), PriceTier(up_to=None, unit_price_nanos=300))
    drafted = card(
        commitment_nanos=DOLLAR, tiers=(TieredPrice(quantity="output_tokens", mode="graduated", tiers=tiers),)
    )
    before, start, end = (month_start(stage.now(), ago=ago) for ago in (2, 1, 0))

    def tenant_on(price_card: PriceCard) -> str:
        tenant = stage.tenant(card=price_card)
        joined(stage, tenant, before)
        with unit_of_work(stage.engine) as session:
            lots.grant(
                session, tenant_id=tenant, kind="promotional", amount_nanos=DOLLAR // 2, reference=tenant
            )  # fmt: skip

        def use(since: datetime, count: int) -> None:
            stage.bill(
                *(
                    stage.event(tenant, output_tokens=900, settled_at_ms=clock.to_ms(since) + 1_000 * second)
                    for second in range(count)
                )
            )

        use(before, 30)
        assert closing.close_tenant(stage.engine, tenant, start) is not None
        use(start, 10)
        use(before + timedelta(days=1), 4)
        return tenant

    tried, real = tenant_on(CARD), tenant_on(drafted)
    assert stage.value("SELECT count(*) FROM usage_records WHERE late_from IS NOT NULL") == 8
    with unit_of_work(stage.engine) as session:
        (found,) = simulate(
            session, plan_id=stage.plan_of(tried), card=drafted, start=start, end=end, after="", limit=10
        )
    invoice = closing.close_tenant(stage.engine, real, end)
    output = 6_000 * 700 + (14 * 900 - 6_000) * 300
    assert found.simulated_nanos == invoice.amount_nanos == DOLLAR
    assert sum(line.simulated_nanos for line in found.lines if line.kind == "output_tokens") == output
