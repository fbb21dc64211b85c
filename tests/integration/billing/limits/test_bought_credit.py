"""Credit that arrives, or goes back, with a payment of Stripe's, and the ceiling that follows from it."""

import pytest
import sqlalchemy as sa

from billing.credits import lots
from billing.limits import spending_settings
from billing.limits.spending_settings import SpendingPatch
from billing.payments.booking import book_payment
from billing.payments.models import PaymentCharge, PaymentQueue
from billing.payments.returned_payments import book_returns
from billing.stripe.objects import StripePayment, StripeRefund, WentBack
from core import db
from core.db import unit_of_work

DOLLAR = 1_000_000_000


@pytest.fixture
def stopped(stage, wallet) -> str:
    """A prepaid tenant that has used all of its credit."""
    tenant = stage.tenant()
    wallet.granted(tenant, 3)
    wallet.spend(tenant, 3)
    with unit_of_work(stage.engine) as session:
        assert spending_settings.change(session, tenant, SpendingPatch(mode="prepaid")).headroom_nanos == 0
    return tenant


def buy(as_billing: sa.Engine, tenant_id: str, cents: int) -> None:
    """A payment for credit has arrived."""
    with unit_of_work(as_billing) as session:
        now = db.database_now(session)
        session.add(PaymentQueue(tenant_id=tenant_id, customer_id="cus_1", created_at=now))
        session.add(PaymentCharge(id="top_1", tenant_id=tenant_id, amount_cents=cents, on_page=True, created_at=now))
    with unit_of_work(as_billing) as session:
        paid = {"status": "succeeded", "received_cents": cents, "currency": "usd"}
        payment = StripePayment(id="pi_1", our_id="top_1", customer="cus_1", **paid)
        assert book_payment(session, payment) is None


def test_credit_that_a_stopped_tenant_buys_raises_its_ceiling_which_waits_to_be_published(
    stage, wallet, as_billing, stopped
):
    assert wallet.published() == []
    buy(as_billing, stopped, 2_500)
    assert wallet.ceiling(stopped) == 28 * DOLLAR
    assert wallet.published() == [stopped]


def test_credit_whose_payment_goes_back_lowers_the_ceiling_which_waits_to_be_published(
    stage, wallet, as_billing, stopped
):
    buy(as_billing, stopped, 2_500)
    assert wallet.published() == [stopped]
    with unit_of_work(as_billing) as session:
        refund = StripeRefund(id="re_1", status="succeeded", amount_cents=2_500, payment_intent="pi_1")
        assert book_returns(session, "pi_1", WentBack(refunds=(refund,))) is None
    assert wallet.ceiling(stopped) == 3 * DOLLAR
    assert wallet.published() == [stopped]


def test_a_payment_is_credited_however_many_lots_the_tenant_has(wallet, as_billing, stopped, monkeypatch):
    monkeypatch.setattr(lots, "CREDIT_LOTS_OPEN_MAX", 1)
    wallet.granted(stopped, 1)
    buy(as_billing, stopped, 2_500)
    assert wallet.balance(stopped).paid_nanos == 26 * DOLLAR
    wallet.check()
