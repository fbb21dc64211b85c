"""Credit that arrives, or goes back, with a payment of Stripe's, and the ceiling that follows from it."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from billing.credits import lots
from billing.limits import ceilings, spending_settings
from billing.limits.spending_settings import SpendingPatch
from billing.payments.booking import book_payment
from billing.payments.models import PaymentCharge, PaymentQueue
from billing.payments.returned_payments import book_returns
from billing.stripe.objects import StripePayment, StripeRefund, WentBack
from control_plane.database_roles import BILLING
from core import db
from core.db import unit_of_work
from tests.fixtures.least_privilege import as_role

DOLLAR = 1_000_000_000


@pytest.fixture
def worker(postgres_settings) -> Iterator[sa.Engine]:
    """Postgres with the rights of the billing worker."""
    engine = db.connect(as_role(postgres_settings, BILLING))
    yield engine
    engine.dispose()


@pytest.fixture
def stopped(stage, wallet) -> str:
    """A prepaid tenant that has used all of its credit."""
    tenant = stage.tenant()
    wallet.granted(tenant, 3)
    wallet.spend(tenant, 3)
    with unit_of_work(stage.engine) as session:
        assert spending_settings.change(session, tenant, SpendingPatch(mode="prepaid")).headroom_nanos == 0
    return tenant


def ceiling(stage, tenant_id: str) -> int | None:
    with unit_of_work(stage.engine) as session:
        return ceilings.stored_ceilings(session, [tenant_id]).get(tenant_id)


def published(stage) -> list[str]:
    with unit_of_work(stage.engine) as session:
        return ceilings.take_changed(session)


def buy(worker: sa.Engine, tenant_id: str, cents: int) -> None:
    """A payment for credit has arrived."""
    with unit_of_work(worker) as session:
        now = db.database_now(session)
        session.add(PaymentQueue(tenant_id=tenant_id, customer_id="cus_1", created_at=now))
        session.add(PaymentCharge(id="top_1", tenant_id=tenant_id, amount_cents=cents, on_page=True, created_at=now))
    with unit_of_work(worker) as session:
        paid = {"status": "succeeded", "amount_cents": cents, "received_cents": cents, "currency": "usd"}
        payment = StripePayment(id="pi_1", our_id="top_1", customer="cus_1", payment_method="pm_1", **paid)
        assert book_payment(session, payment) is None


def test_credit_that_a_stopped_tenant_buys_raises_its_ceiling_which_waits_to_be_published(stage, worker, stopped):
    assert published(stage) == []
    buy(worker, stopped, 2_500)
    assert ceiling(stage, stopped) == 28 * DOLLAR
    assert published(stage) == [stopped]


def test_credit_whose_payment_goes_back_lowers_the_ceiling_which_waits_to_be_published(stage, worker, stopped):
    buy(worker, stopped, 2_500)
    assert published(stage) == [stopped]
    with unit_of_work(worker) as session:
        refund = StripeRefund(
            id="re_1", status="succeeded", amount_cents=2_500, currency="usd", payment_intent="pi_1"
        )  # fmt: skip
        assert book_returns(session, "pi_1", WentBack(refunds=(refund,))) is None
    assert ceiling(stage, stopped) == 3 * DOLLAR
    assert published(stage) == [stopped]


def test_a_payment_is_credited_however_many_lots_the_tenant_has(wallet, worker, stopped, monkeypatch):
    monkeypatch.setattr(lots, "CREDIT_LOTS_OPEN_MAX", 1)
    wallet.granted(stopped, 1)
    buy(worker, stopped, 2_500)
    assert wallet.balance(stopped).paid_nanos == 26 * DOLLAR
    wallet.check()
