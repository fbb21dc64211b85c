"""Credits on invoices: promotional ones lower the taxable amount, paid ones and the balance are payments."""

from datetime import timedelta

import pytest

from billing.credits.lots import grant
from billing.invoices.queries import read_document
from billing.invoicing import closing
from billing.invoicing.drafts import read_drafts
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.money import NANOS_PER_DOLLAR
from tests.fixtures.wallet import Wallet

CENT = Prices(input_nanos=10_000_000, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)


@pytest.fixture
def tenant(stage) -> str:
    """A tenant with $10 of promotional and $50 of paid credit, in a country with 19 % VAT."""
    tenant = stage.tenant(CENT)
    stage.tax()
    with unit_of_work(stage.engine) as session:
        for kind, dollars in (("promotional", 10), ("paid", 50)):
            grant(
                session,
                tenant_id=tenant,
                kind=kind,
                amount_nanos=dollars * NANOS_PER_DOLLAR,
                priority=0,
                reference=kind,
            )
    return tenant


@pytest.mark.scenario(88)
def test_promotional_credit_lowers_the_tax_and_paid_credit_pays_it(stage, tenant):
    stage.bill(stage.event(tenant, input_tokens=3_000, cached_tokens=0, output_tokens=0, kv_page_ms=0))
    draft = read_drafts(stage.engine, tenant, grace=timedelta(hours=1))[-1]
    assert (draft.net_cents, draft.tax_cents, draft.total_cents) == (2_000, 380, 2_380)
    made = closing.close_tenant(stage.engine, tenant, stage.now())
    assert (made.amount_nanos, made.net_cents, made.tax_cents) == (30 * NANOS_PER_DOLLAR, 2_000, 380)
    assert (made.total_cents, made.paid_cents, made.amount_due_cents, made.status) == (2_380, 2_380, 0, "paid")
    with unit_of_work(stage.engine) as session:
        shown = read_document(session, made.id)
    assert [credit.amount_cents for credit in shown.credits] == [1_000]
    assert [(payment.source, payment.amount_cents) for payment in shown.payments] == [("credits", 2_380)]
    assert stage.balance("credits_paid", tenant) == -26_200_000_000
    assert stage.balance("credits_promotional", tenant) == 0
    assert stage.balance("usage_unbilled", tenant) == 0
    assert stage.balance("receivable", tenant) == 0


@pytest.mark.parametrize(
    ("lots", "promised"),
    [
        ([(10, {"kind": "promotional"})], [[600], [400]]),
        ([(8, {"priority": 0}), (10, {"kind": "promotional"})], [[], [520]]),
    ],
    ids=["promotional", "behind paid credit that pays tax too"],
)
def test_the_drafts_of_two_periods_share_the_credit_as_their_invoices_do(stage, lots, promised):
    tenant, wallet = stage.tenant(), Wallet(stage)
    stage.tax(200_000)
    for dollars, terms in lots:
        wallet.granted(tenant, dollars, **terms)
    month = stage.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    wallet.spend(tenant, 6, at=month - timedelta(minutes=1))
    wallet.spend(tenant, 6)
    drafts = read_drafts(stage.engine, tenant, grace=timedelta(days=40))
    shown = [[credit.amount_cents for credit in draft.credits] for draft in drafts]
    made = [closing.close_tenant(stage.engine, tenant, until) for until in (month, stage.now())]
    with unit_of_work(stage.engine) as session:
        invoices = [read_document(session, invoice.id) for invoice in made]
    assert shown == [[credit.amount_cents for credit in invoice.credits] for invoice in invoices] == promised
    assert [draft.total_cents for draft in drafts] == [invoice.total_cents for invoice in made]


def test_an_invoice_over_nothing_that_credits_pay_is_a_document_and_is_not_announced(stage, tenant):
    stage.bill(stage.event(tenant, input_tokens=900, cached_tokens=0, output_tokens=0, kv_page_ms=0))
    made = closing.close_tenant(stage.engine, tenant, stage.now())
    assert (made.number, made.total_cents, made.status) == ("TNR-000001", 0, "paid")
    assert stage.value("SELECT count(*) FROM notifications") == 0
    stage.bill(stage.event(tenant, input_tokens=900, cached_tokens=0, output_tokens=0, kv_page_ms=0))
    second = closing.close_tenant(stage.engine, tenant, stage.now())
    assert stage.rows("SELECT dedupe_key, event_type FROM notifications") == [
        {"dedupe_key": f"invoice.finalized:{second.id}", "event_type": "invoice.finalized"}
    ]
