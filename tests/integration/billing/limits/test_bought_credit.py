"""Credit that arrives, or goes back, with a payment of Stripe's, and the ceiling that follows from it."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from billing.credits import lots
from billing.limits import ceilings, terms
from billing.limits.terms import TermsPatch
from billing.payments.tenora_books import TenoraBooks
from control_plane.database_roles import BILLING
from core import db
from core.db import unit_of_work
from tests.fixtures.least_privilege import as_role

DOLLAR = 1_000_000_000
PAYMENT = "stripe:pi_1"


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
        assert terms.change(session, tenant, TermsPatch(mode="prepaid")).headroom_nanos == 0
    return tenant


def ceiling(stage, tenant_id: str) -> int | None:
    with unit_of_work(stage.engine) as session:
        return ceilings.stored_ceilings(session, [tenant_id]).get(tenant_id)


def published(stage) -> list[str]:
    with unit_of_work(stage.engine) as session:
        return ceilings.take_changed(session)


def buy(worker: sa.Engine, tenant_id: str, cents: int) -> None:
    with unit_of_work(worker) as session:
        TenoraBooks().grant_top_up(session, tenant_id=tenant_id, amount_cents=cents, reference=PAYMENT)


def test_credit_that_a_stopped_tenant_buys_raises_its_ceiling_which_waits_to_be_published(stage, worker, stopped):
    assert published(stage) == []
    buy(worker, stopped, 2_500)
    assert ceiling(stage, stopped) == 28 * DOLLAR
    assert published(stage) == [stopped]


def test_credit_whose_payment_goes_back_lowers_the_ceiling_which_waits_to_be_published(stage, worker, stopped):
    buy(worker, stopped, 2_500)
    assert published(stage) == [stopped]
    with unit_of_work(worker) as session:
        missing = TenoraBooks().take_back_top_up(session, tenant_id=stopped, amount_cents=2_500, reference=PAYMENT)
    assert missing == 0
    assert ceiling(stage, stopped) == 3 * DOLLAR
    assert published(stage) == [stopped]


def test_a_payment_is_credited_however_many_lots_the_tenant_has(wallet, worker, stopped, monkeypatch):
    monkeypatch.setattr(lots, "CREDIT_LOTS_OPEN_MAX", 1)
    wallet.granted(stopped, 1)
    buy(worker, stopped, 2_500)
    assert wallet.balance(stopped).paid_nanos == 26 * DOLLAR
    wallet.check()
