"""The tax of an invoice: by its date, its parties and its rate, and never two."""

from datetime import timedelta

import pytest

from billing.invoices.queries import read_document
from billing.invoicing import closing
from billing.invoicing.credit_notes import issue_credit_note
from billing.invoicing.drafts import read_drafts
from billing.tax import profiles, rate_table
from billing.tax.parties import Buyer, Seller
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import Conflict

CENT = Prices(input_nanos=10_000_000, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
GRACE = timedelta(hours=1)


@pytest.fixture
def german(stage) -> None:
    stage.tax()


def buyer(stage, **details) -> str:
    tenant = stage.tenant(CENT)
    if details:
        with unit_of_work(stage.engine) as session:
            profiles.set_buyer(session, tenant, Buyer(**({"legal_name": "Acme"} | details)))
    return tenant


def use(stage, tenant: str, cents: int, **changes) -> None:
    stage.bill(stage.event(tenant, input_tokens=cents, cached_tokens=0, output_tokens=0, kv_page_ms=0, **changes))


def invoice(stage, tenant: str, cents: int, **changes):
    use(stage, tenant, cents)
    return closing.close_tenant(stage.engine, tenant, stage.now(), **changes)


def document(stage, invoice_id: str):
    with unit_of_work(stage.engine) as session:
        return read_document(session, invoice_id)


@pytest.mark.scenario(124)
def test_tax_is_on_the_invoice_its_lines_and_the_ledger(stage, german):
    made = invoice(stage, buyer(stage, country="DE"), 6_500)
    assert (made.net_cents, made.tax_cents, made.total_cents, made.amount_due_cents) == (6_500, 1_235, 7_735, 7_735)
    shown = document(stage, made.id)
    assert [(tax.name, tax.rate_ppm, tax.base_cents) for tax in shown.tax_lines] == [("VAT", 190_000, 6_500)]
    assert sum(line.tax_cents for line in shown.lines) == 1_235
    owed = "SELECT sum(e.amount_nanos) FROM entries e JOIN accounts a ON a.id = e.account_id WHERE a.kind = :kind"
    assert stage.value(owed, kind="tax_payable") == -12_350_000_000
    assert stage.value(owed, kind="receivable") == 77_350_000_000


def test_a_second_tax_of_a_country_is_refused_until_the_first_has_ended(stage, german):
    def add(name: str, rate_ppm: int, **begins) -> None:
        with unit_of_work(stage.engine) as session:
            rate_table.add_rate(
                session, country="DE", name=name, rate_ppm=rate_ppm, **{"effective_from": None} | begins
            )

    with pytest.raises(Conflict, match="Every line has one rate") as refused:
        add("Reduced VAT", 70_000)
    assert (refused.value.code, refused.value.param) == ("second_tax_rate", "name")
    assert invoice(stage, buyer(stage, country="DE"), 100).tax_cents == 19
    add("VAT", 0)
    add("USt", 160_000)
    assert invoice(stage, buyer(stage, country="DE"), 100).tax_cents == 16
    add("USt", 0)
    add("USt", 170_000, effective_from=stage.now() + timedelta(days=9))
    with pytest.raises(Conflict, match="USt"):
        add("VAT", 190_000)


@pytest.mark.scenario(129)
def test_the_rate_is_that_of_the_finalization_and_stays_on_credit_notes(stage, german):
    tenant = buyer(stage, country="DE")
    use(stage, tenant, 1_000)
    assert read_drafts(stage.engine, tenant, grace=GRACE)[-1].tax_cents == 190
    with unit_of_work(stage.engine) as session:
        rate_table.add_rate(session, country="DE", name="VAT", rate_ppm=160_000, effective_from=None)
    made = closing.close_tenant(stage.engine, tenant, stage.now())
    assert made.tax_cents == 160
    with unit_of_work(stage.engine) as session:
        rate_table.add_rate(session, country="DE", name="VAT", rate_ppm=250_000, effective_from=None)
    with unit_of_work(stage.engine) as session:
        note = issue_credit_note(session, invoice_id=made.id, amount_cents=500, to="amount_due", reason="agreed")
    assert (note.tax_cents, note.tax_lines[0].rate_ppm) == (80, 160_000)


def test_an_invoice_is_due_by_the_terms_of_its_date_and_drafts_warn_of_missing_parties(stage, german):
    whole = {"address": ("Weg 1",), "country": "DE"}
    usual, own = buyer(stage, **whole), buyer(stage, payment_days=45, **whole)
    use(stage, usual, 10)
    (draft,) = read_drafts(stage.engine, usual, grace=GRACE)
    assert [warning.partition(":")[0] for warning in draft.warnings] == ["seller"]
    with unit_of_work(stage.engine) as session:
        profiles.set_seller(session, Seller(legal_name="Tenora GmbH", tax="fixed", payment_days=30, **whole))
    assert read_drafts(stage.engine, usual, grace=GRACE)[0].warnings == ()
    for tenant, days in ((usual, 30), (own, 45)):
        made = invoice(stage, tenant, 10)
        assert made.due_on == made.created_at.date() + timedelta(days=days)
