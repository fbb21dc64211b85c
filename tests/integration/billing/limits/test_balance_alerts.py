"""Alerts on what is left of credit and of the credit limit, whichever process notices it first."""

import pytest

from billing.credits import lots
from billing.invoices.payments import record_payment
from billing.limits import ceilings
from billing.limits.spending_runner import SpendingRunner
from core.db import unit_of_work

DOLLAR = 1_000_000_000


@pytest.fixture
def runner(stage, wallet) -> SpendingRunner:
    return wallet.runner(stage.meter.watch())


def test_a_balance_that_a_refund_lowers_alerts_at_once(stage, wallet, runner):
    tenant = stage.tenant()
    lot = wallet.granted(tenant, 12)
    wallet.terms(tenant, mode="prepaid", balance_floors_nanos=(6 * DOLLAR,))
    runner.run_once()
    with unit_of_work(stage.engine) as session:
        lots.refund_unspent(session, tenant_id=tenant, lot_id=lot, amount_nanos=8 * DOLLAR)
        ceilings.refresh(session, tenant)
    runner.run_once()
    assert wallet.alerted(tenant, "balance.low", "floor_nanos") == [6 * DOLLAR]


def test_a_balance_that_fell_before_an_admin_changed_the_terms_alerts_too(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    wallet.terms(tenant, mode="prepaid", balance_floors_nanos=(6 * DOLLAR,))
    wallet.spend(tenant, 7.2)
    wallet.terms(tenant, invoice_threshold_nanos=100 * DOLLAR)
    runner.run_once()
    assert wallet.alerted(tenant, "balance.low", "balance_nanos") == [4_800_000_000]


def test_credit_of_a_tenant_without_terms_alerts_when_it_is_used_up(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.granted(tenant, 12)
    with unit_of_work(stage.engine) as session:
        ceilings.refresh(session, tenant)
    wallet.spend(tenant, 6)
    runner.run_once()
    assert wallet.alerted(tenant, "balance.low", "floor_nanos") == []
    wallet.spend(tenant, 7.2)
    runner.run_once()
    assert wallet.alerted(tenant, "balance.low", "floor_nanos") == [0]


def test_a_credit_limit_alerts_at_each_threshold_once_and_again_after_a_payment(stage, wallet, runner):
    tenant = stage.tenant()
    wallet.terms(tenant, credit_limit_nanos=12 * DOLLAR)
    wallet.spend(tenant, 4.8)
    runner.run_once()
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == []
    wallet.spend(tenant, 4.8)
    runner.run_once()
    (invoice,) = stage.close()
    runner.run_once()
    wallet.spend(tenant, 0.6)
    runner.run_once()
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == [50, 80]
    with unit_of_work(stage.engine) as session:
        record_payment(
            session, invoice_id=invoice.id, amount_cents=invoice.total_cents, source="manual", reference="wire 1"
        )
    runner.run_once()
    wallet.spend(tenant, 6)
    runner.run_once()
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == [50, 80, 50]


def test_a_credit_limit_that_is_set_below_what_is_owed_alerts_at_once(stage, wallet):
    tenant = stage.tenant()
    wallet.spend(tenant, 6)
    wallet.terms(tenant, credit_limit_nanos=6 * DOLLAR)
    wallet.terms(tenant, credit_limit_nanos=3 * DOLLAR)
    wallet.terms(tenant, balance_floors_nanos=(DOLLAR,))
    assert wallet.alerted(tenant, "credit_limit.threshold_reached", "percent") == [50, 80, 100, 50, 80, 100]
