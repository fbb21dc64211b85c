"""An invoice's lines, file and explanation over the API, for its tenant and for admins only."""

import csv
import io
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pypdfium2
import pytest
import sqlalchemy as sa
from pypdf import PdfReader
from reportlab.pdfbase.ttfonts import TTFontFile

from billing.documents import pdf_maker
from billing.documents.invoice_lines import all_lines, invoice_csv
from billing.documents.settings import DocumentSettings
from billing.invoices import queries
from billing.invoicing import closing
from billing.invoicing.credit_notes import issue_credit_note
from billing.tax import profiles
from billing.tax.parties import Buyer
from core import clock
from core.db import unit_of_work
from core.errors import Unavailable
from tests.fixtures.control_plane.api import PRICES
from tests.fixtures.control_plane.usage import used


@pytest.fixture
def bill(engine, record):
    """Records usage of these adapters, five requests each, and closes. Returns the tenant's invoice."""

    def run(tenant_id: str, adapter_ids, requests: int = 5, service_tier: str = "default"):
        at = clock.now() - timedelta(seconds=5)
        record(
            *(
                used(tenant_id, at + timedelta(milliseconds=n), adapter_id=adapter_id, service_tier=service_tier)
                for n, adapter_id in enumerate(each for each in adapter_ids for _ in range(requests))
            )
        )
        (made,) = (each for each in closing.close_all(engine, least_cents=0).invoices if each.tenant_id == tenant_id)
        return made

    return run


def pages(http, path: str, **parameters) -> list[dict]:
    found, cursor = [], None
    while True:
        found.append(
            http.get(path, params=parameters | ({"cursor": cursor} if cursor else {})).raise_for_status().json()
        )
        if (cursor := found[-1]["next_cursor"]) is None:
            return found


def test_lines_come_in_pages_and_explain_themselves_down_to_the_requests(api, bill):
    tenant = api.tenant()
    invoice = bill(tenant.id, ["ad_a", "ad_b", None])
    for http, root in ((tenant.http, "/api/v1"), (api.admin, "/api/v1/admin")):
        path = f"{root}/invoices/{invoice.id}"
        lines = [line for page in pages(http, f"{path}/lines", limit=5) for line in page["data"]]
        assert len(lines) == 12
        explained = [line for page in pages(http, f"{path}/explain", limit=5) for line in page["data"]]
        assert [each["line"] for each in explained] == lines
        for each in explained:
            requests = pages(http, each["requests_url"], limit=2)
            assert len(requests) == 3
            assert all(page["matches"] for page in requests)
            rows = [row for page in requests for row in page["data"]]
            assert sum(row["amount_nanos"] for row in rows) == each["line"]["amount_nanos"]
            assert sum(Decimal(row["line_quantity"]) for row in rows) == Decimal(each["line"]["quantity"])
            assert all(row["rerated_equal"] for row in rows)
            assert each["price"]["unit_price_nanos"] == each["line"]["unit_price_nanos"]
            assert each["price"]["mode"] == "unit"
    first = explained[0]
    assert first["arithmetic"] == "300 token x 100 nanodollars = 30000 nanodollars"


@pytest.mark.scenario(16)
def test_a_line_of_flex_usage_explains_itself_at_the_price_that_it_paid(api, bill):
    tenant = api.tenant(api.plan(prices=PRICES | {"batch_factor_permille": 500})["name"])
    invoice = bill(tenant.id, [None], service_tier="flex")
    path = f"/api/v1/invoices/{invoice.id}/explain"
    explained = {each["line"]["kind"]: each for each in tenant.http.get(path).raise_for_status().json()["data"]}
    output = explained["output_tokens"]
    assert (output["line"]["service_tier"], output["line"]["list_price_nanos"]) == ("flex", 400)
    assert output["line"]["batch_discount_nanos"] == output["line"]["amount_nanos"] == 5 * 7 * 200
    assert output["arithmetic"] == "35 token x 200 nanodollars (list price 400, 7000 less in all) = 7000 nanodollars"
    assert output["price"]["unit_price_nanos"] == 200
    for each in explained.values():
        page = tenant.http.get(each["requests_url"]).raise_for_status().json()
        assert page["matches"]
        assert all(row["rerated_equal"] for row in page["data"])


def test_the_csv_of_an_invoice_has_every_line_and_no_formula(api, base, bill, engine):
    tenant = api.tenant()
    invoice = bill(tenant.id, [tenant.adapter("support-bot", base)["id"]])
    for path in (f"/api/v1/invoices/{invoice.id}.csv", f"/api/v1/invoices/{invoice.id}/csv"):
        answer = tenant.http.get(path)
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.headers["content-disposition"] == f'attachment; filename="{invoice.number}.csv"'
        rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
        assert {row["adapter"] for row in rows} == {"support-bot"}
        assert sum(Decimal(row["amount_usd"]) for row in rows) == Decimal(invoice.amount_nanos).scaleb(-9)
        for row in rows:
            assert Decimal(row["quantity"]) * Decimal(row["unit_price_usd"]) >= Decimal(row["amount_usd"])
    detail = queries_of(engine, invoice.id)
    evil = [msgspec.structs.replace(line, adapter_name='=HYPERLINK("http://x","y")') for line in detail.lines]
    (_, row, *_) = csv.reader(io.StringIO("".join(invoice_csv(invoice, evil)), newline=""))
    assert '\'=HYPERLINK("http://x","y")' in row


def queries_of(engine, invoice_id: str):
    with unit_of_work(engine) as session:
        return queries.read_document(session, invoice_id)


@pytest.mark.scenario(114)
@pytest.mark.parametrize("lines_of", [1_200, pytest.param(20_000, marks=pytest.mark.soak)])
def test_an_invoice_of_thousands_of_lines_comes_in_pages_and_as_a_stream(api, engine, lines_of):
    """The lines are written by COPY's equal; the database checks them as it checks those of a close."""
    tenant = api.tenant()
    now = datetime.now(UTC).replace(microsecond=0)
    hour = (now - timedelta(hours=2)).replace(minute=0, second=0)
    with engine.begin() as connection:
        version = connection.execute(sa.text("SELECT id FROM price_versions LIMIT 1")).scalar_one()
        connection.execute(
            sa.text("""
INSERT INTO usage_hours (tenant_id, hour, late_from, key_id, base_model, adapter_id, revision_id, rank_class,
    price_version_id, requests, input_tokens, uncached_requests, input_nanos, output_tokens, output_requests,
    output_nanos)
SELECT :t, :hour, to_timestamp(0), 'key_1', 'tiny-instruct', 'ad_' || lpad(n::text, 6, '0'), '', 0, :v, 1, 10, 1, 1000,
    5, 1, 2000
FROM generate_series(1, :adapters) n
"""),
            {"t": tenant.id, "hour": hour, "v": version, "adapters": lines_of // 2},
        )
    with unit_of_work(engine) as session:
        session.connection().execute(
            sa.text("UPDATE subscriptions SET billed_until = :hour WHERE tenant_id = :t"),
            {"hour": hour - timedelta(hours=1), "t": tenant.id},
        )
    made = closing.close_tenant(engine, tenant.id, hour + timedelta(hours=1), least_cents=0)
    assert made is not None
    lines = [
        line for page in pages(tenant.http, f"/api/v1/invoices/{made.id}/lines", limit=1_000) for line in page["data"]
    ]
    assert len(lines) == lines_of == len({line["id"] for line in lines})
    answer = tenant.http.get(f"/api/v1/invoices/{made.id}.csv")
    assert answer.text.count("\r\n") == lines_of + 1
    tracemalloc.start()
    assert sum(1 for _ in invoice_csv(made, all_lines(engine, made.id))) == lines_of + 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000, "the lines are not held together"


def opened(content: bytes) -> str:
    """The text of a PDF without spaces, the same by two readers."""
    by_pypdf = "".join(page.extract_text() for page in PdfReader(io.BytesIO(content)).pages)
    by_pdfium = "".join(page.get_textpage().get_text_bounded() for page in pypdfium2.PdfDocument(content))
    found = {"".join(sorted("".join(text.split()))) for text in (by_pypdf, by_pdfium.replace("\x02", "-"))}
    assert len(found) == 1
    return "".join(by_pypdf.split())


@pytest.mark.scenario(112)
def test_the_pdf_of_an_invoice_is_the_same_twice_and_shows_it(api, base, bill):
    tenant = api.tenant()
    invoice = bill(tenant.id, [tenant.adapter("support-bot", base)["id"], None], requests=50)
    answers = [
        http.get(path)
        for http, path in (
            (tenant.http, f"/api/v1/invoices/{invoice.id}.pdf"),
            (tenant.http, f"/api/v1/invoices/{invoice.id}/pdf"),
            (api.admin, f"/api/v1/admin/invoices/{invoice.id}.pdf"),
        )
    ]
    assert {answer.headers["content-type"] for answer in answers} == {"application/pdf"}
    assert answers[0].headers["content-disposition"] == f'inline; filename="{invoice.number}.pdf"'
    assert len({answer.content for answer in answers}) == 1
    text = opened(answers[0].content)
    assert invoice.number in text
    assert "Prompttokens" in text
    assert "adaptersupport-bot" in text
    assert "SHA-256" in text
    assert "Amountdue(USdollars)" in text


def test_a_credit_note_is_printed_for_its_own_tenant_only(api, bill, engine):
    tenant, other = api.tenant(), api.tenant()
    invoice = bill(tenant.id, [None], requests=600)
    assert invoice.total_cents > 0
    with unit_of_work(engine) as session:
        made = issue_credit_note(
            session, invoice_id=invoice.id, amount_cents=invoice.total_cents, to="amount_due", reason="Störung",
            idempotency="test",
        )  # fmt: skip
    answer = tenant.http.get(f"/api/v1/credit-notes/{made.id}.pdf")
    assert answer.content == api.admin.get(f"/api/v1/admin/credit-notes/{made.id}/pdf").content
    text = opened(answer.content)
    assert made.number in text
    assert "Credit:Störung" in text
    assert invoice.number in text
    for path in (f"/api/v1/credit-notes/{made.id}.pdf", "/api/v1/credit-notes/cn_none/pdf"):
        refused = other.http.get(path)
        assert (refused.status_code, refused.json()["code"]) == (404, "credit_note_not_found")


def test_pdfs_are_made_one_at_a_time_and_others_wait_and_then_get_503(engine, api, bill, monkeypatch):
    monkeypatch.setattr(pdf_maker, "_WAIT_S", 0)
    tenant = api.tenant()
    invoice = bill(tenant.id, [None])
    maker = pdf_maker.PdfMaker(DocumentSettings())
    begun, finish = threading.Event(), threading.Event()

    def slow(printed, typefaces):
        begun.set()
        assert finish.wait(20)
        return b"%PDF"

    monkeypatch.setattr(pdf_maker, "_render", slow)
    first = threading.Thread(target=maker.invoice, args=(engine, invoice.id), kwargs={"tenant_id": None})
    first.start()
    assert begun.wait(20)
    with pytest.raises(Unavailable) as refused:
        maker.invoice(engine, invoice.id, tenant_id=tenant.id)
    assert refused.value.retry_after_s == 5
    finish.set()
    first.join(20)
    assert maker.invoice(engine, invoice.id, tenant_id=tenant.id).content == b"%PDF"


def test_two_pdfs_that_are_asked_for_at_once_have_the_bytes_that_each_has_alone(engine, api, bill, monkeypatch):
    """ReportLab reads glyphs, of accented letters part by part, from a position that it keeps in the font. Another
    thread gets its turn at each of them.
    """
    seek = TTFontFile.seek

    def let_others_run(font: TTFontFile, position: int) -> None:
        seek(font, position)
        time.sleep(0)

    maker = pdf_maker.PdfMaker(DocumentSettings())
    invoices = []
    for name in ("áéíóúäöüñçšžřàèìòùâêîôûãõ", "ąęėįųĄĘĖĮŲģķļņŗĢĶĻŅŖ"):
        tenant = api.tenant().id
        with unit_of_work(engine) as session:
            profiles.set_buyer(session, tenant, Buyer(legal_name=name))
        invoices.append(bill(tenant, [None]).id)
    alone = [maker.invoice(engine, each, tenant_id=None).content for each in invoices]
    monkeypatch.setattr(TTFontFile, "seek", let_others_run)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(5):
            made = threads.map(lambda each: maker.invoice(engine, each, tenant_id=None).content, invoices)
            assert list(made) == alone
