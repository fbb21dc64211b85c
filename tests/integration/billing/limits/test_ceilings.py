"""Spend ceilings of prepaid tenants and of credit limits, and the runner that keeps them."""

from datetime import timedelta

import pytest

from billing import ledger
from billing.credits import lots
from billing.ledger import AccountRef, Leg, Posting
from billing.limits import ceilings, terms
from billing.limits.models import SpendCeiling
from billing.limits.spending_runner import SpendingRunner
from billing.limits.terms import TermsPatch
from core.db import unit_of_work
from core.ids import new_id

DOLLAR = 1_000_000_000


@pytest.fixture
def runner(stage) -> SpendingRunner:
    return SpendingRunner(stage.engine, stage.meter.watch())


def change(stage, tenant_id: str, **changes):
    with unit_of_work(stage.engine) as session:
        return terms.change(session, tenant_id, TermsPatch(**changes))


def ceiling(stage, tenant_id: str) -> int | None:
    with unit_of_work(stage.engine) as session:
        return ceilings.stored_ceiling(session, tenant_id)


def published(stage) -> list[str]:
    with unit_of_work(stage.engine) as session:
        return ceilings.take_changed(session)


def owe(stage, tenant_id: str, dollars: float) -> None:
    """An invoice, or below 0 a payment, as the ledger has it."""
    nanos = round(dollars * DOLLAR)
    with unit_of_work(stage.engine) as session:
        legs = (Leg(AccountRef("receivable", tenant_id), nanos), Leg(AccountRef("cash"), -nanos))
        ledger.post(session, Posting(transfer_id=new_id("tr"), kind="payment", legs=legs))


def test_a_prepaid_tenant_may_be_charged_its_credit_and_no_more(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.spend(tenant, 6)
    wallet.granted(tenant, 50, effective_from=stage.now())
    assert change(stage, tenant, mode="prepaid").headroom_nanos == 50 * DOLLAR
    assert ceiling(stage, tenant) == 56 * DOLLAR
    wallet.spend(tenant, 3)
    runner.run_once()
    assert ceiling(stage, tenant) == 56 * DOLLAR
    assert published(stage) == []
    with unit_of_work(stage.engine) as session:
        assert terms.read(session, tenant).headroom_nanos == 47 * DOLLAR


def test_without_terms_or_credit_there_is_no_ceiling_and_without_credit_a_prepaid_tenant_stops(stage, wallet):
    tenant = stage.tenant()
    wallet.spend(tenant, 3)
    assert ceiling(stage, tenant) is None
    change(stage, tenant, mode="prepaid")
    assert ceiling(stage, tenant) == 3 * DOLLAR
    change(stage, tenant, mode="postpaid")
    assert ceiling(stage, tenant) is None


def test_a_grant_raises_the_ceiling_and_a_refund_lowers_it_in_the_same_transaction(stage, wallet):
    tenant = stage.tenant()
    change(stage, tenant, mode="prepaid")
    with unit_of_work(stage.engine) as session:
        lot = lots.grant(session, tenant_id=tenant, kind="paid", amount_nanos=5 * DOLLAR, reference="a")
        terms.credit_changed(session, tenant)
    assert ceiling(stage, tenant) == 5 * DOLLAR
    with unit_of_work(stage.engine) as session:
        lots.refund_unspent(session, tenant_id=tenant, lot_id=lot.id, amount_nanos=2 * DOLLAR)
        terms.credit_changed(session, tenant)
    assert ceiling(stage, tenant) == 3 * DOLLAR


@pytest.mark.scenario(75)
def test_the_runner_lowers_the_ceiling_when_a_lot_ends_and_posts_what_it_lost(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 5)
    ends = stage.now() + timedelta(milliseconds=700)
    wallet.granted(tenant, 10, expires_at=ends)
    change(stage, tenant, mode="prepaid")
    runner.run_once()
    assert ceiling(stage, tenant) == 15 * DOLLAR
    stage.value("SELECT pg_sleep_until(:ends)::text", ends=ends)
    runner.run_once()
    assert ceiling(stage, tenant) == 5 * DOLLAR
    assert published(stage) == [tenant]
    assert published(stage) == []
    assert wallet.account("breakage") == -10 * DOLLAR
    wallet.check()


def test_credit_for_one_model_raises_the_ceiling_when_its_usage_is_recorded(stage, wallet, runner):
    """A ceiling counts for all models, so that credit for one cannot pay for another."""
    tenant = stage.tenant()
    wallet.granted(tenant, 5)
    wallet.granted(tenant, 10, models=["large"], priority=0)
    change(stage, tenant, mode="prepaid")
    assert ceiling(stage, tenant) == 5 * DOLLAR
    wallet.spend(tenant, 3, base_model="large")
    runner.run_once()
    assert ceiling(stage, tenant) == 8 * DOLLAR
    wallet.spend(tenant, 3, base_model="small")
    runner.run_once()
    assert ceiling(stage, tenant) == 8 * DOLLAR


@pytest.mark.scenario(99)
def test_unbilled_usage_and_unpaid_invoices_count_towards_the_credit_limit_until_they_are_paid(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.spend(tenant, 60)
    change(stage, tenant, credit_limit_nanos=200 * DOLLAR)
    assert ceiling(stage, tenant) == 200 * DOLLAR
    owe(stage, tenant, 140)
    runner.run_once()
    assert ceiling(stage, tenant) == 60 * DOLLAR
    with unit_of_work(stage.engine) as session:
        shown = terms.read(session, tenant)
    assert (shown.headroom_nanos, shown.unbilled_nanos, shown.receivable_nanos) == (0, 60 * DOLLAR, 140 * DOLLAR)
    owe(stage, tenant, -50)
    runner.run_once()
    assert ceiling(stage, tenant) == 110 * DOLLAR
    assert published(stage) == [tenant]


def test_credit_pays_before_the_credit_limit_is_used(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 6)
    change(stage, tenant, credit_limit_nanos=3 * DOLLAR)
    wallet.spend(tenant, 6)
    runner.run_once()
    assert ceiling(stage, tenant) == 9 * DOLLAR


def test_a_ceiling_that_was_computed_before_a_grant_does_not_replace_the_grants(stage, wallet):
    tenant = stage.tenant()
    change(stage, tenant, mode="prepaid")
    with unit_of_work(stage.engine) as session:
        before = session.get(SpendCeiling, tenant)
        computed = ceilings.compute(session, tenant)
    wallet.grant(tenant, 5)
    with unit_of_work(stage.engine) as session:
        terms.credit_changed(session, tenant)
    with unit_of_work(stage.engine) as session:
        assert ceilings.store(session, before, computed) is False
    assert ceiling(stage, tenant) == 5 * DOLLAR


@pytest.mark.scenario(94)
def test_a_falling_balance_alerts_once_at_each_floor_in_order(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    change(stage, tenant, mode="prepaid", balance_floors_nanos=(3 * DOLLAR, 0, 6 * DOLLAR))
    runner.run_once()
    wallet.spend(tenant, 10.8)
    runner.run_once()
    wallet.spend(tenant, 0.6)
    runner.run_once()
    alerts = stage.rows("SELECT event_type, data FROM notifications WHERE tenant_id = :t ORDER BY id", t=tenant)
    assert [(each["event_type"], each["data"]["floor_nanos"]) for each in alerts] == [
        ("balance.low", 6 * DOLLAR), ("balance.low", 3 * DOLLAR),
    ]  # fmt: skip
