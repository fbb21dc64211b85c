"""Spend ceilings of prepaid tenants and of credit limits, and the runner that keeps them."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from billing import ledger
from billing.invoicing.closing import close_tenant
from billing.ledger import AccountRef, between
from billing.limits import ceilings, spending_settings
from billing.limits.models import SpendCeiling
from billing.limits.spending_runner import SpendingRunner
from billing.limits.views import AutoTopUp
from billing.payments.top_ups import TopUpStanding, buy_if_due, is_due
from billing.subscriptions.ending import end_subscription
from core.db import unit_of_work
from tests.fixtures.together import together

DOLLAR = 1_000_000_000


@pytest.fixture
def runner(stage, wallet) -> SpendingRunner:
    return wallet.runner(stage.meter.watch())


def owe(stage, tenant_id: str, dollars: float) -> None:
    """An invoice, or below 0 a payment, as the ledger has it."""
    nanos = round(dollars * DOLLAR)
    with unit_of_work(stage.engine) as session:
        ledger.post(session, "payment", between(AccountRef("receivable", tenant_id), AccountRef("cash"), nanos))


def test_a_prepaid_tenant_may_be_charged_at_most_its_credit(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.spend(tenant, 6)
    wallet.granted(tenant, 50, effective_from=stage.now())
    assert wallet.terms(tenant, mode="prepaid").headroom_nanos == 50 * DOLLAR
    assert wallet.ceiling(tenant) == 56 * DOLLAR
    wallet.spend(tenant, 3)
    runner.run_once()
    assert wallet.ceiling(tenant) == 56 * DOLLAR
    assert wallet.published() == []
    with unit_of_work(stage.engine) as session:
        assert spending_settings.read(session, tenant).headroom_nanos == 47 * DOLLAR


def test_a_prepaid_tenant_with_tax_owes_nothing_when_its_ceiling_is_reached(stage, wallet, runner):
    stage.tax()
    tenant = stage.tenant()
    wallet.granted(tenant, 50)
    shown = wallet.terms(tenant, mode="prepaid", balance_floors_nanos=(0,))
    assert (shown.balance_nanos, shown.headroom_nanos) == (50 * DOLLAR, 42_020_000_000)
    assert wallet.ceiling(tenant) == 42_020_000_000
    wallet.spend(tenant, 3.0000006)
    wallet.spend(tenant, 39.0199986)  # within 800 nanodollars, all that is left
    runner.run_once()
    assert wallet.ceiling(tenant) == 42_020_000_000
    wallet.spend(tenant, 0.0000006)
    (invoice,) = stage.close()
    assert (invoice.net_cents, invoice.total_cents, invoice.amount_due_cents) == (4_202, 5_000, 0)
    runner.run_once()
    alerts = stage.rows("SELECT event_type FROM notifications WHERE event_type = 'balance.low'")
    assert len(alerts) == 1
    with unit_of_work(stage.engine) as session:
        assert spending_settings.read(session, tenant).headroom_nanos == 0


@pytest.mark.scenario(75)
def test_the_runner_lowers_the_ceiling_when_a_lot_ends_and_posts_what_it_lost(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 5)
    ends = stage.now() + timedelta(seconds=4)
    wallet.granted(tenant, 10, expires_at=ends)
    wallet.terms(tenant, mode="prepaid")
    runner.run_once()
    assert wallet.ceiling(tenant) == 15 * DOLLAR
    stage.value("SELECT pg_sleep_until(:ends)::text", ends=ends)
    runner.run_once()
    assert wallet.ceiling(tenant) == 5 * DOLLAR
    assert wallet.published() == [tenant]
    assert wallet.published() == []
    assert wallet.account("breakage") == -10 * DOLLAR
    wallet.check()


def test_credit_for_one_model_raises_the_ceiling_when_its_usage_is_recorded(stage, wallet, runner):
    """A ceiling counts for all models, so that credit for one cannot pay for another."""
    tenant = stage.tenant()
    wallet.granted(tenant, 5)
    wallet.granted(tenant, 10, models=["large"], priority=0)
    wallet.terms(tenant, mode="prepaid")
    assert wallet.ceiling(tenant) == 5 * DOLLAR
    wallet.spend(tenant, 3, base_model="large")
    runner.run_once()
    assert wallet.ceiling(tenant) == 8 * DOLLAR
    wallet.spend(tenant, 3, base_model="small")
    runner.run_once()
    assert wallet.ceiling(tenant) == 8 * DOLLAR


@pytest.mark.scenario(99)
def test_unbilled_usage_and_unpaid_invoices_count_towards_the_credit_limit_until_they_are_paid(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.spend(tenant, 60)
    wallet.terms(tenant, credit_limit_nanos=200 * DOLLAR)
    assert wallet.ceiling(tenant) == 200 * DOLLAR
    owe(stage, tenant, 140)
    runner.run_once()
    assert wallet.ceiling(tenant) == 60 * DOLLAR
    with unit_of_work(stage.engine) as session:
        shown = spending_settings.read(session, tenant)
    assert (shown.headroom_nanos, shown.unbilled_nanos, shown.receivable_nanos) == (0, 60 * DOLLAR, 140 * DOLLAR)
    owe(stage, tenant, -50)
    runner.run_once()
    assert wallet.ceiling(tenant) == 110 * DOLLAR
    assert wallet.published() == [tenant]


def test_a_raised_credit_limit_sends_no_threshold_that_was_passed_before(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.terms(tenant, credit_limit_nanos=12 * DOLLAR)
    wallet.spend(tenant, 9.6)
    runner.run_once()
    wallet.terms(tenant, credit_limit_nanos=18 * DOLLAR)
    wallet.spend(tenant, 4.8)
    runner.run_once()
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == [50, 80, 80]
    wallet.terms(tenant, credit_limit_nanos=15 * DOLLAR)
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == [50, 80, 80, 50, 80]


def test_credit_pays_before_the_credit_limit_is_used(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 6)
    wallet.terms(tenant, credit_limit_nanos=3 * DOLLAR)
    wallet.spend(tenant, 6)
    runner.run_once()
    assert wallet.ceiling(tenant) == 9 * DOLLAR


def test_a_ceiling_that_was_computed_before_a_grant_does_not_replace_the_grants(stage, wallet):
    tenant = stage.tenant()
    wallet.terms(tenant, mode="prepaid")
    with unit_of_work(stage.engine) as session:
        before = session.get(SpendCeiling, tenant)
        computed = ceilings.compute(session, tenant)
    wallet.grant(tenant, 5)
    with unit_of_work(stage.engine) as session:
        ceilings.refresh(session, tenant)
    with unit_of_work(stage.engine) as session:
        assert ceilings.store(session, before, computed) is False
    assert wallet.ceiling(tenant) == 5 * DOLLAR


@pytest.mark.scenario(94)
def test_a_falling_balance_alerts_once_at_each_floor_in_order(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    wallet.terms(tenant, mode="prepaid", balance_floors_nanos=(3 * DOLLAR, 0, 6 * DOLLAR))
    runner.run_once()
    wallet.spend(tenant, 10.8)
    runner.run_once()
    wallet.spend(tenant, 0.6)
    runner.run_once()
    alerts = stage.rows("SELECT event_type, data FROM notifications WHERE tenant_id = :t ORDER BY id", t=tenant)
    assert [(each["event_type"], each["data"]["floor_nanos"]) for each in alerts] == [
        ("balance.low", 6 * DOLLAR), ("balance.low", 3 * DOLLAR),
    ]  # fmt: skip


@pytest.mark.scenario(100)
def test_unbilled_usage_at_the_threshold_is_invoiced_at_once_and_the_rest_later(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.terms(tenant, invoice_threshold_nanos=100 * DOLLAR)
    wallet.spend(tenant, 99)
    runner.run_once()
    assert stage.rows("SELECT total_cents FROM invoices") == []
    wallet.spend(tenant, 1.2)
    runner.run_once()
    runner.run_once()
    assert [each["total_cents"] for each in stage.rows("SELECT total_cents FROM invoices")] == [10_020]
    wallet.spend(tenant, 30)
    runner.run_once()
    assert [invoice.total_cents for invoice in stage.close()] == [3_000]


def bought(stage) -> list[int]:
    """What was asked of saved cards, in cents."""
    return [each["amount_cents"] for each in stage.rows("SELECT amount_cents FROM payment_charges ORDER BY id")]


@pytest.mark.scenario(84)
def test_two_workers_that_see_a_low_balance_at_once_start_one_payment(stage, wallet):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    top_up = AutoTopUp(amount_cents=2_500, floor_nanos=5 * DOLLAR, month_cents_max=5_000)
    wallet.terms(tenant, mode="prepaid", auto_top_up=top_up)
    wallet.spend(tenant, 9)

    together(*(wallet.runner(buy_credit=partial(buy_if_due, stage.engine)).run_once for _ in range(2)))
    assert bought(stage) == [2_500]


@pytest.mark.scenario(85)
def test_credit_is_bought_again_only_a_day_after_a_failure_and_within_the_months_cap():
    asked = AutoTopUp(amount_cents=2_500, floor_nanos=5 * DOLLAR, month_cents_max=5_000)
    now = datetime(2026, 11, 23, tzinfo=UTC)

    def due(asked: AutoTopUp | None, balance: int = 5 * DOLLAR, **standing) -> bool:
        return is_due(asked, TopUpStanding(**standing), balance_nanos=balance, now=now)

    assert due(asked)
    assert not due(None)
    assert not due(asked, 5 * DOLLAR + 1)
    assert not due(asked, in_flight=True)
    assert due(asked, month_cents=2_500)
    assert not due(asked, month_cents=2_501)
    assert not due(asked, failed_at=now - timedelta(hours=23))
    assert due(asked, failed_at=now - timedelta(days=1))


def test_the_cap_that_stops_top_ups_is_announced_once(stage, wallet):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    top_up = AutoTopUp(amount_cents=2_500, floor_nanos=5 * DOLLAR, month_cents_max=2_500)
    wallet.terms(tenant, mode="prepaid", auto_top_up=top_up)
    wallet.spend(tenant, 9)
    look = wallet.runner(buy_credit=partial(buy_if_due, stage.engine), top_ups_every=timedelta(0))
    look.run_once()
    assert (bought(stage), wallet.alerted(tenant, "top_up.cap_reached", "cap_cents")) == ([2_500], [])
    stage.change("UPDATE payment_charges SET state = 'paid'")
    for _ in range(2):
        look.run_once()
    assert (bought(stage), wallet.alerted(tenant, "top_up.cap_reached", "cap_cents")) == ([2_500], [2_500])
    raised = AutoTopUp(amount_cents=2_500, floor_nanos=5 * DOLLAR, month_cents_max=4_999)
    wallet.terms(tenant, auto_top_up=raised)
    look.run_once()
    assert wallet.alerted(tenant, "top_up.cap_reached", "cap_cents") == [2_500, 4_999]


@pytest.mark.scenario(58)
def test_a_tenant_that_leaves_keeps_its_paid_credit_and_loses_its_gifts_after_the_final_invoice(stage, wallet, runner):
    tenant = stage.tenant()
    paid = wallet.granted(tenant, 7.3)
    gift = wallet.granted(tenant, 12, kind="promotional")
    wallet.spend(tenant, 3)
    with unit_of_work(stage.engine) as session:
        ended_at = end_subscription(session, tenant)
    runner.run_once()
    assert wallet.lot(tenant, gift).balance_nanos == 9 * DOLLAR
    close_tenant(stage.engine, tenant, ended_at, least_cents=0)
    wallet.runner().run_once()
    assert wallet.lot(tenant, gift).voided_nanos == 9 * DOLLAR
    assert wallet.lot(tenant, paid).balance_nanos == 7_300_000_000
    assert wallet.account("promotions") == 3 * DOLLAR
    wallet.check()
