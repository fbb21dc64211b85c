"""Credits on invoices: promotional ones before tax, paid ones after it."""

from datetime import timedelta

import msgspec
import pytest

from billing.charges.inputs import period_start
from billing.charges.period import adjust
from billing.credits import burning
from billing.credits.views import CreditUse
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until
from core.db import unit_of_work
from core.ids import new_id
from core.money import round_to_cents
from core.periods import Period

DOLLAR = 1_000_000_000


class Closed(msgspec.Struct, frozen=True):
    promotional: list[CreditUse]
    taxable_nanos: int
    total_cents: int
    paid_cents: int


def close(stage, tenant_id: str, *, until=None, tax_percent: int = 0) -> Closed:
    """What a close does with wallet, without its document."""
    with unit_of_work(stage.engine) as session:
        billed_until = lock_billed_until(session, tenant_id)
        period = Period(period_start(session, tenant_id, billed_until), until or stage.now())
        lines, _ = adjust(session, tenant_id, period)
        invoice_id = new_id("inv")
        uses = burning.apply_promotional(session, tenant_id, period, lines, invoice_id=invoice_id)
        net = sum(line.amount_nanos for line in lines) - sum(use.amount_nanos for use in uses)
        total = round_to_cents(net) + round_to_cents(round_to_cents(net) * 10_000_000 * tax_percent // 100)
        paid = burning.apply_paid(session, tenant_id, period, lines, invoice_id=invoice_id, due_cents=total)
        advance_billed_until(session, tenant_id, period.end)
        return Closed(uses, net, total, paid)


@pytest.mark.scenario(75)
def test_late_usage_of_before_the_expiry_uses_the_lot_although_it_lapsed_and_its_period_is_closed(stage, wallet):
    tenant = stage.tenant()
    ends = stage.now().replace(microsecond=0) - timedelta(hours=6)
    lot_id = wallet.granted(tenant, 10, expires_at=ends)
    wallet.spend(tenant, 3, at=ends - timedelta(hours=2))
    assert close(stage, tenant, until=stage.now() - timedelta(hours=1)).paid_cents == 300
    wallet.lapse(tenant)
    assert wallet.account("breakage") == -7 * DOLLAR
    wallet.spend(tenant, 1.2, at=ends - timedelta(minutes=1))
    wallet.spend(tenant, 2.4, at=ends + timedelta(minutes=1))
    assert wallet.lot(tenant, lot_id).pending_nanos == 1_200_000_000
    closed = close(stage, tenant)
    assert (closed.total_cents, closed.paid_cents) == (360, 120)
    assert wallet.lapse(tenant) == 0
    assert wallet.account("breakage") == -5_800_000_000
    entries = stage.rows("SELECT * FROM credit_entries ORDER BY number")
    assert [(entry["kind"], entry["amount_nanos"]) for entry in entries] == [
        ("grant", 10 * DOLLAR), ("burn", -3 * DOLLAR), ("lapse", -7 * DOLLAR), ("lapse", 1_200_000_000),
        ("burn", -1_200_000_000),
    ]  # fmt: skip
    wallet.check()


def test_a_part_of_a_cent_is_paid_in_whole_cents_by_the_amount_due(stage, wallet):
    tenant = stage.tenant()
    wallet.granted(tenant, 50)
    wallet.spend(tenant, 0.0168)
    closed = close(stage, tenant)
    assert (closed.total_cents, closed.paid_cents) == (2, 2)
    assert wallet.account("credits_paid", tenant) == -49_980_000_000


def test_paid_credit_that_covers_part_of_a_cent_pays_whole_cents(stage, wallet):
    tenant = stage.tenant()
    begins = stage.now().replace(microsecond=0) - timedelta(hours=4)
    wallet.granted(tenant, 50, effective_from=begins)
    wallet.spend(tenant, 0.0168, at=begins - timedelta(minutes=5))
    wallet.spend(tenant, 0.0168, at=begins)
    closed = close(stage, tenant)
    assert (closed.total_cents, closed.paid_cents) == (3, 1)
    wallet.check()


def test_a_plan_writes_nothing_and_says_what_the_close_does(stage, wallet):
    tenant = stage.tenant()
    wallet.granted(tenant, 10, kind="promotional")
    wallet.spend(tenant, 3)
    with unit_of_work(stage.engine) as session:
        period = Period(period_start(session, tenant, None), stage.now())
        lines, _ = adjust(session, tenant, period)
        planned = burning.CreditPlan(session, tenant).pay_promotional(period, lines)
    assert len(stage.rows("SELECT * FROM credit_entries")) == 1
    assert close(stage, tenant).promotional == planned
