"""Routes over corrections of invoices and over the parties that they name: admin routes, and a tenant's own."""

from litestar import Controller, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from billing.invoices.views import CreditNoteView, InvoiceView
from billing.tax.parties import Buyer, Seller
from billing.tax.rate_table import TaxRateView
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.invoices import documents_service as service
from control_plane.invoices.schemas import (
    AdminProfileBody,
    CustomerBalance,
    EndingReason,
    InvoiceVoid,
    NewCreditNote,
    NewPayment,
    NewTaxRate,
    ProfileBody,
    SellerBody,
    TaxRates,
)
from control_plane.paging import Page, PageCursor, PageLimit
from core.db import unit_of_work

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
        return idempotent.run(lambda session: service.issue_note(session, invoice_id, data, actor=principal.key_id))

    @post("/invoices/{invoice_id:str}/payments", sync_to_thread=True)
    def record_manual_payment(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[NewPayment],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[InvoiceView]:
        """Record a payment that arrived outside of Stripe. What exceeds the amount due goes to the tenant's balance."""
        return idempotent.run(lambda session: service.pay(session, invoice_id, data, actor=principal.key_id))

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
        return idempotent.run(
            lambda session: service.void(session, invoice_id, data, actor=principal.key_id), status_code=200
        )

    @post("/invoices/{invoice_id:str}/write-off", sync_to_thread=True, status_code=200)
    def write_off_invoice(
        self,
        invoice_id: FromPath[str],
        data: JSONBody[EndingReason],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[InvoiceView]:
        """Mark an open invoice as uncollectible. A later payment recovers it."""
        return idempotent.run(
            lambda session: service.write_off(session, invoice_id, data, actor=principal.key_id),
            status_code=200,
        )

    @get("/credit-notes", sync_to_thread=True)
    def list_all_credit_notes(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[CreditNoteView]:
        """List the credit notes of all tenants, newest first."""
        with unit_of_work(engine) as session:
            return service.list_notes(session, tenant_id=None, cursor=cursor, limit=limit)


class AdminParties(Controller):
    """Who sells and who buys on later invoices, and the tax rates."""

    path = "/"
    tags = ("admin: billing",)

    @get("/tenants/{tenant_id:str}/billing-profile", sync_to_thread=True)
    def get_billing_profile(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> Buyer:
        """Get a tenant's details on later invoices."""
        with unit_of_work(engine) as session:
            return service.get_profile(session, tenant_id)

    @put("/tenants/{tenant_id:str}/billing-profile", sync_to_thread=True)
    def set_billing_profile(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[AdminProfileBody],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> Buyer:
        """Set a tenant's details on later invoices, with an exemption from tax. Final invoices keep theirs."""
        with unit_of_work(engine) as session:
            return service.set_profile(session, tenant_id, data, actor=principal.key_id)

    @get("/billing/seller", sync_to_thread=True)
    def get_seller(self, engine: NamedDependency[Engine]) -> Seller:
        """Get the operator's details on later invoices."""
        with unit_of_work(engine) as session:
            return service.get_seller(session)

    @put("/billing/seller", sync_to_thread=True)
    def set_seller(
        self, data: JSONBody[SellerBody], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Seller:
        """Set the operator's details on later invoices, and whether they have tax."""
        with unit_of_work(engine) as session:
            return service.set_seller(session, data, actor=principal.key_id)

    @get("/billing/tax-rates", sync_to_thread=True)
    def list_tax_rates(self, engine: NamedDependency[Engine]) -> TaxRates:
        """List all tax rates by country, with ended and scheduled ones."""
        with unit_of_work(engine) as session:
            return TaxRates(rates=service.list_rates(session))

    @post("/billing/tax-rates", sync_to_thread=True)
    def add_tax_rate(
        self,
        data: JSONBody[NewTaxRate],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[TaxRateView]:
        """Add a tax rate of a country. Invoices have the rate of their date, and keep it on their credit notes."""
        return idempotent.run(lambda session: service.add_rate(session, data, actor=principal.key_id))


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
            return service.list_notes(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/credit-notes/{credit_note_id:str}", sync_to_thread=True, opt=_READ)
    def get_credit_note(
        self, credit_note_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> CreditNoteView:
        """Get one credit note."""
        with unit_of_work(engine) as session:
            return service.get_note(session, credit_note_id, tenant_id=principal.own_tenant_id)

    @get("/customer-balance", sync_to_thread=True, opt=_READ)
    def get_customer_balance(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> CustomerBalance:
        """Get what the platform owes the tenant from overpayments and credit notes. It pays the next invoices."""
        with unit_of_work(engine) as session:
            return service.customer_balance(session, principal.own_tenant_id)

    @get("/billing-profile", sync_to_thread=True, opt=_READ)
    def get_own_billing_profile(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> Buyer:
        """Get the tenant's details on later invoices."""
        with unit_of_work(engine) as session:
            return service.get_profile(session, principal.own_tenant_id)

    @put("/billing-profile", sync_to_thread=True, opt=_WRITE)
    def set_own_billing_profile(
        self, data: JSONBody[ProfileBody], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Buyer:
        """Set the tenant's details on later invoices. A VAT id is checked by its form only and not looked up."""
        with unit_of_work(engine) as session:
            return service.set_own_profile(session, principal.own_tenant_id, data, actor=principal.key_id)
