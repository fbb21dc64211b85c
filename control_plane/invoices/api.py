"""Routes over invoices: a tenant's over its own, and an admin's that list all, close a period and reconcile."""

from typing import Annotated

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from redis import Redis
from sqlalchemy import Engine

from billing.invoices.statuses import InvoiceStatus
from billing.invoices.views import InvoiceView
from billing.reconciliation.views import Reconciliation
from billing.settings import InvoiceSettings
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.invoices import service
from control_plane.invoices.schemas import CloseBody, Closed, Drafts, InvoiceWithLines
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.tenants import service as tenants
from core.db import unit_of_work

OfTenant = Annotated[str | None, QueryParameter(max_length=64, description="Only invoices of this tenant.")]
InStatus = Annotated[InvoiceStatus | None, QueryParameter(description="Only invoices in this status.")]


class OwnInvoices(Controller):
    """The invoices of the calling tenant."""

    path = "/invoices"
    tags = ("invoices",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def list_invoices(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[InvoiceView]:
        """List the tenant's invoices, newest first."""
        with unit_of_work(engine) as session:
            return service.list_invoices(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/draft", sync_to_thread=True)
    def get_invoice_drafts(
        self,
        reports: NamedDependency[Engine],
        invoice_rules: NamedDependency[InvoiceSettings],
        principal: NamedDependency[Principal],
    ) -> Drafts:
        """Get what the tenant's next invoices would be now: of ended periods that wait for late usage, and of the
        running one.
        """
        return service.drafts(reports, invoice_rules, tenant_id=principal.own_tenant_id)

    @get("/{invoice_id:str}", sync_to_thread=True)
    def get_invoice(
        self, invoice_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> InvoiceWithLines:
        """Get one invoice with its lines, taxes, payments and credit notes."""
        with unit_of_work(engine) as session:
            return service.get(session, invoice_id=invoice_id, tenant_id=principal.own_tenant_id)


class AdminBilling(Controller):
    """Billing of all tenants."""

    path = "/"
    tags = ("admin: billing",)

    @get("/invoices", sync_to_thread=True)
    def list_all_invoices(
        self,
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
        tenant_id: OfTenant = None,
        status: InStatus = None,
    ) -> Page[InvoiceView]:
        """List the invoices of all tenants, newest first."""
        with unit_of_work(engine) as session:
            return service.list_invoices(session, tenant_id=tenant_id, status=status, cursor=cursor, limit=limit)

    @get("/invoices/{invoice_id:str}", sync_to_thread=True)
    def get_any_invoice(self, invoice_id: FromPath[str], engine: NamedDependency[Engine]) -> InvoiceWithLines:
        """Get one invoice with its lines, taxes, payments and credit notes."""
        with unit_of_work(engine) as session:
            return service.get(session, invoice_id=invoice_id, tenant_id=None)

    @get("/tenants/{tenant_id:str}/invoice-drafts", sync_to_thread=True)
    def get_invoice_drafts_of_tenant(
        self,
        tenant_id: FromPath[str],
        reports: NamedDependency[Engine],
        invoice_rules: NamedDependency[InvoiceSettings],
    ) -> Drafts:
        """Get what a tenant's next invoices would be now."""
        with unit_of_work(reports) as session:
            tenants.get(session, tenant_id)
        return service.drafts(reports, invoice_rules, tenant_id=tenant_id)

    @post("/billing/close", sync_to_thread=True)
    def close_period(
        self,
        data: JSONBody[CloseBody],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[Closed]:
        """Close the billing period of all tenants, or of one: invoice all usage settled before an instant. It makes no
        invoice over $0.00. With `dry_run` it changes nothing and shows the invoices that it would make.
        """
        return idempotent.run(lambda _: service.close(engine, data, actor=principal.key_id))

    @get("/reconciliation", sync_to_thread=True)
    def reconcile(self, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> Reconciliation:
        """Compare the token counts of engines, ledger and invoices."""
        with unit_of_work(engine) as session:
            return service.reconcile(session, redis)
