"""Invoices through the API: drafts, credit notes, payments, endings, billing profiles and tax."""

import re
import secrets
from pathlib import Path

import pytest

from tests.fixtures.control_plane.usage import used
from tests.fixtures.how_to import commands, send

DOLLAR = {"input_nanos": 1_000_000_000, "cached_input_nanos": 0, "output_nanos": 0, "kv_page_second_nanos": 0}
SELLER = {"legal_name": "Tenora GmbH", "address": ["Weg 1", "10115 Berlin"], "country": "DE", "tax": "fixed"}


@pytest.fixture
def desk(api, record):
    return Desk(api, record)


class Desk:
    """A tenant that pays a dollar a token."""

    def __init__(self, api, record) -> None:
        self.api, self.admin = api, api.admin
        self.tenant = api.tenant(api.plan(prices=DOLLAR)["name"])
        self._record = record

    def use(self, dollars: int) -> None:
        self._record(used(self.tenant.id, input_tokens=dollars, cached_tokens=0, output_tokens=0, kv_page_ms=0))

    def invoice(self, dollars: int) -> dict:
        self.use(dollars)
        closed = self.admin.post("/api/v1/admin/billing/close", json={"until": "now"}).raise_for_status().json()
        (invoice,) = (each for each in closed["invoices"] if each["tenant_id"] == self.tenant.id)
        return invoice

    def act(self, invoice: dict, act: str, body: dict, **headers: str):
        return self.admin.post(f"/api/v1/admin/invoices/{invoice['id']}/{act}", json=body, headers=headers)

    def vat(self) -> None:
        self.admin.put("/api/v1/admin/billing/seller", json=SELLER).raise_for_status()
        rate = {"country": "DE", "name": f"VAT {secrets.token_hex(2)}", "rate_ppm": 190_000}
        self.admin.post("/api/v1/admin/billing/tax-rates", json=rate).raise_for_status()


def test_a_draft_follows_usage_and_a_close_finalizes_it(desk):
    assert desk.tenant.http.get("/api/v1/invoices/draft").json()["drafts"][-1]["total_cents"] == 0
    desk.use(2)
    (draft,) = desk.tenant.http.get("/api/v1/invoices/draft").json()["drafts"]
    assert (draft["total_cents"], draft["ended"], draft["lines"][0]["quantity"]) == (200, False, "2")
    desk.use(3)
    path = f"/api/v1/admin/tenants/{desk.tenant.id}/invoice-drafts"
    assert desk.admin.get(path).json()["drafts"][0]["total_cents"] == 500
    invoice = desk.invoice(1)
    assert (invoice["total_cents"], invoice["status"]) == (600, "open")
    assert desk.tenant.http.get("/api/v1/invoices/draft").json()["drafts"][-1]["total_cents"] == 0
    assert desk.admin.get("/api/v1/admin/tenants/tn_none/invoice-drafts").status_code == 404


@pytest.mark.scenario(123)
def test_a_credit_note_is_issued_once_for_an_idempotency_key(desk):
    invoice = desk.invoice(100)
    body = {"amount_cents": 3_000, "reason": "outage", "to": "balance"}
    first = desk.act(invoice, "credit-notes", body, **{"idempotency-key": "note-1"})
    again = desk.act(invoice, "credit-notes", body, **{"idempotency-key": "note-1"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    shown = desk.tenant.http.get(f"/api/v1/invoices/{invoice['id']}").json()
    assert (shown["amount_due_cents"], len(shown["credit_notes"])) == (7_000, 1)
    note = shown["credit_notes"][0]
    assert desk.tenant.http.get(f"/api/v1/credit-notes/{note['id']}").json() == note
    assert desk.tenant.http.get("/api/v1/credit-notes").json()["data"] == [note]
    assert note in desk.admin.get("/api/v1/admin/credit-notes").json()["data"]
    assert desk.api.tenant().http.get(f"/api/v1/credit-notes/{note['id']}").status_code == 404


@pytest.mark.scenario(117)
def test_what_cannot_be_corrected_is_refused_with_code_field_and_fix(desk):
    invoice = desk.invoice(100)
    reason = {"reason": "agreed"}
    for act, body, status, code, param in (
        ("credit-notes", reason, 400, "invalid_value", "amount_cents"),
        ("credit-notes", reason | {"amount_cents": 0}, 400, "invalid_value", "amount_cents"),
        ("credit-notes", reason | {"amount_cents": 10_001}, 409, "credit_exceeds_invoice", "amount_cents"),
        ("credit-notes", reason | {"amount_cents": 1.5}, 400, "invalid_value", "amount_cents"),
        ("credit-notes", reason | {"line_id": "il_none"}, 404, "line_not_found", "line_id"),
        ("credit-notes", reason | {"amount_cents": 1, "to": "refund", "more": 1}, 400, "unknown_field", "more"),
        ("payments", {"amount_cents": -1, "reference": "x"}, 400, "invalid_value", "amount_cents"),
        ("void", {}, 400, "missing_field", "reason"),
    ):
        answer = desk.act(invoice, act, body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.json().get("param") in {param, None}
        assert answer.json()["detail"]
    assert desk.act(invoice, "payments", {"amount_cents": 10_000, "reference": "bank-1"}).json()["status"] == "paid"
    refused = desk.act(invoice, "void", reason)
    assert (refused.status_code, refused.json()["code"]) == (409, "invoice_not_open")
    unknown = desk.admin.post("/api/v1/admin/invoices/inv_none/void", json=reason)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "invoice_not_found")


def test_the_parties_are_frozen_in_the_invoice(desk):
    desk.vat()
    profile = {"legal_name": "Ακμή Α.Ε.", "address": ["Οδός 1"], "country": "DE", "email": "pay@acme.example"}
    assert desk.tenant.http.get("/api/v1/billing-profile").json()["legal_name"] == "Acme"
    desk.tenant.http.put("/api/v1/billing-profile", json=profile).raise_for_status()
    invoice = desk.invoice(65)
    assert (invoice["net_cents"], invoice["tax_cents"], invoice["total_cents"]) == (6_500, 1_235, 7_735)
    desk.tenant.http.put("/api/v1/billing-profile", json=profile | {"legal_name": "Other"}).raise_for_status()
    shown = desk.tenant.http.get(f"/api/v1/invoices/{invoice['id']}").json()
    assert (shown["buyer"]["legal_name"], shown["seller"]["legal_name"]) == ("Ακμή Α.Ε.", "Tenora GmbH")
    assert sum(line["tax_cents"] for line in shown["lines"]) == 1_235


@pytest.mark.scenario(126)
def test_an_impossible_vat_id_country_or_email_is_refused_at_entry(desk):
    for body, code, param in (
        ({"country": "DE", "vat_id": "DE136695977"}, "invalid_vat_id", "vat_id"),
        ({"country": "FR", "vat_id": "DE136695976"}, "invalid_vat_id", "vat_id"),
        ({"vat_id": "DE136695976"}, "country_missing", "country"),
        ({"country": "Germany"}, "invalid_country", "country"),
        ({"country": "UK"}, "invalid_country", "country"),
        ({"email": "a@b"}, "invalid_email_address", "email"),
    ):
        answer = desk.tenant.http.put("/api/v1/billing-profile", json={"legal_name": "Acme"} | body)
        assert (answer.status_code, answer.json()["code"], answer.json()["param"]) == (400, code, param)
    good = {"legal_name": "Acme", "country": "DE", "vat_id": "de 136 695 976"}
    assert desk.tenant.http.put("/api/v1/billing-profile", json=good).json()["vat_id"] == "DE136695976"


@pytest.mark.scenario(127)
def test_only_an_admin_exempts_a_tenant_from_tax_and_lets_it_pay_by_transfer(desk):
    own = {"legal_name": "Acme", "exempt_from": "2020-01-01", "collection_method": "send_invoice"}
    for field in ("exempt_from", "collection_method"):
        body = {"legal_name": "Acme", field: own[field]}
        assert desk.tenant.http.put("/api/v1/billing-profile", json=body).status_code == 400
    path = f"/api/v1/admin/tenants/{desk.tenant.id}/billing-profile"
    desk.admin.put(path, json=own).raise_for_status()
    desk.tenant.http.put("/api/v1/billing-profile", json={"legal_name": "Acme AG"}).raise_for_status()
    assert own | {"legal_name": "Acme AG"} == {name: desk.admin.get(path).json()[name] for name in own}
    backwards = own | {"exempt_until": "2019-01-01"}
    answer = desk.admin.put(path, json=backwards)
    assert (answer.status_code, answer.json()["param"]) == (400, "exempt_until")


def test_rates_begin_in_the_future_and_once(desk):
    rate = {"country": "AT", "name": "USt", "rate_ppm": 200_000, "effective_from": "2099-01-01T00:00:00Z"}
    post = "/api/v1/admin/billing/tax-rates"
    assert desk.admin.post(post, json=rate).status_code == 201
    assert desk.admin.post(post, json=rate).json()["code"] == "tax_rate_exists"
    nowhere = desk.admin.post(post, json=rate | {"country": "UK"})
    assert (nowhere.status_code, nowhere.json()["detail"]) == (400, "country: 'UK' is no country: write GB.")
    past = desk.admin.post(post, json=rate | {"effective_from": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["param"]) == (400, "effective_from")
    assert rate["name"] in [each["name"] for each in desk.admin.get(post).json()["rates"]]


def test_every_call_in_the_how_to_is_accepted(desk):
    values = {
        "TENORA_CONTROL_URL": desk.api.url, "TENORA_ADMIN_KEY": desk.api.admin_secret,
        "TENORA_API_KEY": desk.tenant.key, "INVOICE": desk.invoice(100)["id"],
    }  # fmt: skip
    dry, note, seller, rate, profile = [each for each in commands("correct-invoices.md") if each.startswith("curl")]
    assert send(dry, values).body == {"dry_run": True, "invoices": []}
    issued = send(note, values)
    assert (issued.status, issued.body["net_cents"]) == (201, 3_000)
    assert send(seller, values).body["tax"] == "fixed"
    assert send(rate, values).status == 201
    assert send(profile, values).body["legal_name"] == "Acme AG"


def test_every_refusal_that_the_how_to_names_exists():
    root = Path(__file__).parents[4]
    page = (root / "docs" / "how-to" / "correct-invoices.md").read_text()
    known = (root / "docs" / "reference" / "errors.md").read_text()
    codes = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page[page.index("## Refusals") : page.index("## Seller")])
    assert len(codes) == 7
    assert [code for code in codes if f"`{code}`" not in known] == []
