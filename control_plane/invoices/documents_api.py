"""Routes over corrections of invoices and over the parties that they name: admin routes, and a tenant's own."""

from functools import partial

import msgspec
from litestar import Controller, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.invoices import balance, credit_note_queries
from billing.invoices.views import CreditNoteView, InvoiceView
from billing.invoicing import credit_notes, endings
from billing.payments.booking import record_manual_payment
from billing.tax import profiles, rate_table
from billing.tax.parties import BillingProfile, Buyer, Seller
from billing.tax.rate_table import TaxRateView
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.invoices.schemas import (
    CustomerBalance,
    EndingReason,
    InvoiceVoid,
    NewCreditNote,
    NewPayment,
    NewTaxRate,
    TaxRates,
)
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import NotFound

_READ = {"scope": "billing:read", "while_suspended": True}
_WRITE = {"scope": "billing:write", "while_suspended": True}


class AdminCorrections(Controller):
    """Corrections of final invoices."""

    path = "/"
    tags = ("admin: billing",)

    @post("/invoices/{invoice_id:str}/credit-notes", sync_to_thread=True)
    def issue_credit_note(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[NewCreditNote],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[CreditNoteView]:
        """Credit a part of an invoice, with its tax. What is still due is lowered first; the rest goes to the
        tenant's balance or is refunded.
        """

        def issue(session: Session) -> CreditNoteView:
            audited(session, principal, "credit_note.issued", invoice_id, details=data)
            fields = msgspec.structs.asdict(data)
            return credit_notes.issue_credit_note(session, invoice_id=invoice_id, actor=principal.key_id, **fields)

        return idempotent.run(issue)

    @post("/invoices/{invoice_id:str}/payments", sync_to_thread=True)
    def record_manual_payment(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[NewPayment],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[InvoiceView]:
        """Record a payment that arrived outside of Stripe. What exceeds the amount due goes to the tenant's balance."""

        def pay(session: Session) -> InvoiceView:
            audited(session, principal, "invoice.paid", invoice_id, details=data)
            fields = msgspec.structs.asdict(data)
            return record_manual_payment(session, invoice_id=invoice_id, actor=principal.key_id, **fields)

        return idempotent.run(pay)

    @post("/invoices/{invoice_id:str}/void", sync_to_thread=True, status_code=200)
    def void_invoice(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[InvoiceVoid],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[InvoiceView]:
        """Void an open invoice of which no money is paid. Its usage, fees and discounts are on the tenant's next
        invoice; with `write_off` they are on none.
        """

        def void(session: Session) -> InvoiceView:
            fields = msgspec.structs.asdict(data)
            ended = endings.void_invoice(session, invoice_id=invoice_id, actor=principal.key_id, **fields)
            audited(session, principal, "invoice.voided", invoice_id, tenant_id=ended.tenant_id, details=data)
            return ended

        return idempotent.run(void, status_code=200)

    @post("/invoices/{invoice_id:str}/write-off", sync_to_thread=True, status_code=200)
    def write_off_invoice(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[EndingReason],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[InvoiceView]:
        """Mark an open invoice as uncollectible. A later payment recovers it."""

        def write_off(session: Session) -> InvoiceView:
            ended = endings.write_off(session, invoice_id=invoice_id, reason=data.reason, actor=principal.key_id)
            audited(session, principal, "invoice.written_off", invoice_id, tenant_id=ended.tenant_id, details=data)
            return ended

        return idempotent.run(write_off, status_code=200)

    @get("/credit-notes", sync_to_thread=True)
    def list_all_credit_notes(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[CreditNoteView]:
        """List the credit notes of all tenants, newest first."""
        with unit_of_work(engine) as session:
            read = partial(credit_note_queries.list_notes, session, tenant_id=None)
            return page_from(read, cursor=cursor, limit=limit)


class AdminParties(Controller):
    """Who sells and who buys on later invoices, and the tax rates."""

    path = "/"
    tags = ("admin: billing",)

    @get("/tenants/{tenant_id:str}/billing-profile", sync_to_thread=True)
    def get_billing_profile(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Buyer:
        """Get a tenant's details on later invoices."""
        with unit_of_work(engine) as session:
            return _profile(session, tenant_id)

    @put("/tenants/{tenant_id:str}/billing-profile", sync_to_thread=True)
    def set_billing_profile(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[Buyer],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> Buyer:
        """Set a tenant's details on later invoices, with an exemption from tax. Final invoices keep theirs."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return _set_profile(session, principal, tenant_id, data)

    @get("/billing/seller", sync_to_thread=True)
    def get_seller(self, engine: NamedDependency[Engine]) -> Seller:
        """Get the operator's details on later invoices."""
        with unit_of_work(engine) as session:
            seller = profiles.read_seller(session)
        if seller is None:
            raise NotFound("The seller's details are not set. PUT them here.", code="seller_not_found")
        return seller

    @put("/billing/seller", sync_to_thread=True)
    def set_seller(
        self, data: JSONBody[Seller], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Seller:
        """Set the operator's details on later invoices, and whether they have tax."""
        with unit_of_work(engine) as session:
            audited(session, principal, "seller.changed", "seller", details=data)
            return profiles.set_seller(session, data)

    @get("/billing/tax-rates", sync_to_thread=True)
    def list_tax_rates(self, engine: NamedDependency[Engine]) -> TaxRates:
        """List all tax rates by country, with ended and scheduled ones."""
        with unit_of_work(engine) as session:
            return TaxRates(rates=rate_table.list_rates(session))

    @post("/billing/tax-rates", sync_to_thread=True)
    def add_tax_rate(
        self,
        data: JSONBody[NewTaxRate],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[TaxRateView]:
        """Add a tax rate of a country. Invoices have the rate of their date, and keep it on their credit notes."""

        def add(session: Session) -> TaxRateView:
            audited(session, principal, "tax_rate.added", f"{data.country}/{data.name}", details=data)
            return rate_table.add_rate(session, **msgspec.structs.asdict(data))

        return idempotent.run(add)


class OwnDocuments(Controller):
    """The calling tenant's credit notes, balance and details on invoices."""

    path = "/"
    tags = ("invoices",)

    @get("/credit-notes", sync_to_thread=True, opt=_READ)
    def list_credit_notes(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[CreditNoteView]:
        """List the tenant's credit notes, newest first."""
        with unit_of_work(engine) as session:
            read = partial(credit_note_queries.list_notes, session, tenant_id=principal.own_tenant_id)
            return page_from(read, cursor=cursor, limit=limit)

    @get("/credit-notes/{credit_note_id:str}", sync_to_thread=True, opt=_READ)
    def get_credit_note(
        self, credit_note_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> CreditNoteView:
        """Get one credit note."""
        with unit_of_work(engine) as session:
            note = credit_note_queries.find_note(session, credit_note_id)
        if note is None or note.tenant_id != principal.own_tenant_id:
            raise NotFound("Credit note not found.", code="credit_note_not_found")
        return note

    @get("/customer-balance", sync_to_thread=True, opt=_READ)
    def get_customer_balance(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> CustomerBalance:
        """Get what the platform owes the tenant from overpayments and credit notes. It pays the next invoices."""
        with unit_of_work(engine) as session:
            return CustomerBalance(balance_cents=balance.balance_cents(session, principal.own_tenant_id))

    @get("/billing-profile", sync_to_thread=True, opt=_READ)
    def get_own_billing_profile(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> Buyer:
        """Get the tenant's details on later invoices."""
        with unit_of_work(engine) as session:
            return _profile(session, principal.own_tenant_id)

    @put("/billing-profile", sync_to_thread=True, opt=_WRITE)
    def set_own_billing_profile(
        self, data: JSONBody[BillingProfile], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Buyer:
        """Set the tenant's details on later invoices. A VAT id is checked by its form only and not looked up."""
        with unit_of_work(engine) as session:
            profiles.lock_buyer(session, principal.own_tenant_id)
            before = _profile(session, principal.own_tenant_id)
            whole = msgspec.structs.replace(before, **msgspec.structs.asdict(data))
            return _set_profile(session, principal, principal.own_tenant_id, whole)


def _profile(session: Session, tenant_id: str) -> Buyer:
    """Before they are set, a tenant's details have the tenant's name."""
    tenant = tenants.get(session, tenant_id)
    return profiles.read_buyer(session, tenant_id) or Buyer(legal_name=tenant.name)


def _set_profile(session: Session, principal: Principal, tenant_id: str, buyer: Buyer) -> Buyer:
    audited(session, principal, "billing_profile.changed", tenant_id, tenant_id=tenant_id, details=buyer)
    return profiles.set_buyer(session, tenant_id, buyer)
