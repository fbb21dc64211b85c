"""The tax of an invoice: by its date, its parties and its rates, and never without it."""

from datetime import date, timedelta

import pytest

from billing.invoices import closing
from billing.invoices.credit_notes import issue_credit_note
from billing.invoices.drafts import read_drafts
from billing.invoices.queries import read_document
from billing.invoices.schedule import PeriodSchedule
from billing.tax import profiles, sources
from billing.tax.calculation import REVERSE_CHARGE
from billing.tax.parties import Buyer, Seller
from billing.tax.sources import OwnRates, TaxUnavailable
from core.contracts.grants import Prices
from core.db import unit_of_work

CENT = Prices(input_nanos=10_000_000, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
GRACE = timedelta(hours=1)


class FailingFor(OwnRates):
    """A source that does not answer for one tenant."""

    def __init__(self, legal_name: str) -> None:
        self._legal_name = legal_name
        self.broken = True

    def decide(self, engine, parties, at):
        if self.broken and parties.buyer is not None and parties.buyer.legal_name == self._legal_name:
            raise TaxUnavailable("the tax service answers 503")
        return super().decide(engine, parties, at)


@pytest.fixture
def german(stage) -> None:
    with unit_of_work(stage.engine) as session:
        profiles.set_seller(session, Seller(legal_name="Tenora GmbH", country="DE", tax="fixed"))
        sources.add_rate(session, country="DE", name="VAT", rate_ppm=190_000, effective_from=None)


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


@pytest.mark.scenario(126)
def test_a_business_in_another_eu_country_gets_a_reverse_charge(stage, german):
    made = invoice(stage, buyer(stage, country="FR", vat_id="FR40303265045"), 10_000)
    assert (made.tax_cents, made.total_cents) == (0, 10_000)
    assert [tax.note for tax in document(stage, made.id).tax_lines] == [REVERSE_CHARGE]


@pytest.mark.scenario(127)
def test_an_exempt_tenant_has_no_tax_line(stage, german):
    exempt = invoice(stage, buyer(stage, country="DE", exempt_from=date(2020, 1, 1)), 100)
    later = invoice(stage, buyer(stage, country="DE", exempt_from=stage.now().date() + timedelta(days=2)), 100)
    assert (document(stage, exempt.id).tax_lines, exempt.total_cents) == ((), 100)
    assert later.tax_cents == 19


@pytest.mark.scenario(128)
def test_a_tax_source_that_fails_holds_only_that_tenants_draft(stage, german):
    held, other = buyer(stage, legal_name="Held", country="DE"), buyer(stage, legal_name="Other", country="DE")
    month = stage.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for tenant in (held, other):
        use(stage, tenant, 100, settled_at_ms=int(month.timestamp() * 1000) - 60_000)
    source = FailingFor("Held")
    schedule = PeriodSchedule(stage.engine, grace=timedelta(0), tax=source)
    schedule.run_once()
    assert stage.rows("SELECT tenant_id FROM invoices") == [{"tenant_id": other}]
    draft, running = read_drafts(stage.engine, held, grace=GRACE, tax=source)
    assert (draft.ended, draft.held_because, draft.tax_cents) == (True, "the tax service answers 503", 0)
    assert timedelta(0) < draft.next_try_at - stage.now() <= timedelta(minutes=1)
    assert not running.ended
    source.broken = False
    schedule.run_once()  # not before its time
    assert stage.value("SELECT count(*) FROM invoices") == 1
    stage.change("UPDATE invoice_holds SET next_try_at = now()")
    schedule.run_once()
    assert stage.value("SELECT tax_cents FROM invoices WHERE tenant_id = :t", t=held) == 19
    assert stage.value("SELECT count(*) FROM invoice_holds") == 0


@pytest.mark.scenario(128)
def test_an_explicit_close_names_the_tenant_that_has_no_tax(stage, german):
    held, other = buyer(stage, legal_name="Held", country="DE"), buyer(stage, country="DE")
    use(stage, held, 100)
    use(stage, other, 100)
    made, failed = closing.close_all(stage.engine, tax=FailingFor("Held"))
    assert ([each.tenant_id for each in made], failed) == ([other], [held])
    for attempts in (2, 3):
        with pytest.raises(TaxUnavailable):
            closing.close_tenant(stage.engine, held, stage.now(), tax=FailingFor("Held"))
        assert stage.value("SELECT attempts FROM invoice_holds") == attempts


@pytest.mark.scenario(129)
def test_the_rate_is_that_of_the_finalization_and_stays_on_credit_notes(stage, german):
    tenant = buyer(stage, country="DE")
    use(stage, tenant, 1_000)
    assert read_drafts(stage.engine, tenant, grace=GRACE)[-1].tax_cents == 190
    with unit_of_work(stage.engine) as session:
        sources.add_rate(session, country="DE", name="VAT", rate_ppm=160_000, effective_from=None)
    made = closing.close_tenant(stage.engine, tenant, stage.now())
    assert made.tax_cents == 160
    with unit_of_work(stage.engine) as session:
        sources.add_rate(session, country="DE", name="VAT", rate_ppm=250_000, effective_from=None)
    with unit_of_work(stage.engine) as session:
        note = issue_credit_note(session, invoice_id=made.id, amount_cents=500, to="amount_due", reason="agreed")
    assert (note.tax_cents, note.tax_lines[0].rate_ppm) == (80, 160_000)


def test_the_parties_of_an_invoice_are_those_of_its_date(stage, german):
    tenant = buyer(stage, legal_name="Acme", country="DE")
    made = invoice(stage, tenant, 10)
    with unit_of_work(stage.engine) as session:
        profiles.set_buyer(session, tenant, Buyer(legal_name="Acme Holding"))
        profiles.set_seller(session, Seller(legal_name="Other"))
    shown = document(stage, made.id)
    assert (shown.buyer.legal_name, shown.seller.legal_name) == ("Acme", "Tenora GmbH")
