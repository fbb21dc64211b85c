"""The final invoice of a tenant that has left: what it paid ahead comes back on it, once, with its tax."""

from datetime import datetime, timedelta

import msgspec
import pytest

from billing.documents.pdf_maker import PdfMaker
from billing.documents.settings import DocumentSettings
from billing.invoices import balance, verification
from billing.invoices.queries import read_document
from billing.invoicing.closing import close_tenant
from billing.invoicing.drafts import read_drafts
from billing.invoicing.schedule import PeriodSchedule
from billing.prices.card import PriceCard
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.money import NANOS_PER_DOLLAR as DOLLAR
from tests.fixtures.money_checks import MoneyChecks
from tests.integration.billing.conftest import month_start

FEE = 30 * DOLLAR
PRICES = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=600, kv_page_second_nanos=0)
NO_GRACE = timedelta(0)


@pytest.fixture
def months(stage) -> list[datetime]:
    """The starts of this month and the two before, oldest first."""
    return [month_start(stage.now(), ago=ago) for ago in (2, 1, 0, -1)]


@pytest.fixture
def tenant(stage, months) -> str:
    """A tenant that has paid a fee ahead for two months, with 20 % VAT, and left within this month."""
    stage.tax(200_000)
    card = PriceCard.of_all_models(PRICES)
    tenant = stage.tenant(card=msgspec.structs.replace(card, base_fee_nanos=FEE, base_fee_when="advance"))
    stage.force("UPDATE plan_assignments SET created_at = :at WHERE tenant_id = :t", at=months[0], t=tenant)
    PeriodSchedule(stage.engine, grace=NO_GRACE).run_once()
    return tenant


def leave(stage, tenant: str, months: list[datetime]) -> tuple[datetime, int]:
    """Close the tenant within this month. Returns when, and the nanodollars of the fee for the rest of the month."""
    elapsed = (stage.now() - months[2]) / 2
    ended_at = months[2] + timedelta(seconds=max(1, int(elapsed.total_seconds())))
    stage.change("UPDATE subscriptions SET ended_at = :at WHERE tenant_id = :t", at=ended_at, t=tenant)
    seconds = (months[3] - months[2]).total_seconds()
    return ended_at, FEE - FEE * int((ended_at - months[2]).total_seconds()) // int(seconds)


def cents(nanos: int) -> int:
    return (nanos + 5_000_000) // 10_000_000


def test_what_was_paid_ahead_is_on_the_final_invoice_and_in_the_balance_once(stage, tenant, months):
    checks = MoneyChecks(stage.engine)
    ahead = stage.rows("SELECT kind, amount_nanos FROM invoice_lines")
    assert [tuple(row.values()) for row in ahead] == [("base_fee", FEE)] * 3, "billed without usage, month after month"
    assert stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM usage_months") == 0, "fees are no spending"
    ended_at, unused = leave(stage, tenant, months)
    draft = read_drafts(stage.engine, tenant, grace=NO_GRACE)[-1]
    for _ in range(2):
        PeriodSchedule(stage.engine, grace=NO_GRACE).run_once()
        checks.check()
    *_, final = stage.rows("SELECT id, kind, period_end, amount_nanos FROM invoices ORDER BY period_end")
    assert (final["kind"], final["period_end"], final["amount_nanos"]) == ("final", ended_at, -unused)
    with unit_of_work(stage.engine) as session:
        document = read_document(session, final["id"], tenant_id=tenant)
        owed_cents = balance.balance_cents(session, tenant)
        assert verification.verify(session).findings == []
    net, tax = -cents(unused), -(cents(unused) * 20 + 50) // 100
    assert abs(document.tax_cents - tax) <= 1
    assert (document.net_cents, document.status) == (net, "paid")
    assert (document.total_cents, owed_cents) == (draft.total_cents, -draft.total_cents)
    assert [(line.kind, line.amount_nanos) for line in document.lines] == [("proration", -unused)]
    left = stage.rows("SELECT state FROM period_states ORDER BY period_end DESC LIMIT 1")
    assert "credit_nanos" not in left[0]["state"]
    close_tenant(stage.engine, tenant, stage.now())
    with unit_of_work(stage.engine) as session:
        assert balance.balance_cents(session, tenant) == owed_cents
    printed = PdfMaker(DocumentSettings()).invoice(stage.engine, final["id"], tenant_id=tenant)
    assert printed.content.startswith(b"%PDF")
