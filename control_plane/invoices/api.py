"""Routes over invoices: a tenant's over its own, and an admin's that list all, close a period and reconcile."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from redis import Redis
from sqlalchemy import Engine

from billing.views import InvoiceView, Reconciliation
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.invoices import service
from control_plane.invoices.schemas import CloseBody, Closed, InvoiceWithLines
from control_plane.paging import Page, PageCursor, PageLimit
from core.db import unit_of_work


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

    @get("/{invoice_id:str}", sync_to_thread=True)
    def get_invoice(
        self, invoice_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> InvoiceWithLines:
        """Get one invoice with its lines."""
        with unit_of_work(engine) as session:
            return service.get(session, invoice_id=invoice_id, tenant_id=principal.own_tenant_id)


class AdminBilling(Controller):
    """Billing of all tenants."""

    path = "/"
    tags = ("admin: billing",)

    @get("/invoices", sync_to_thread=True)
    def list_all_invoices(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[InvoiceView]:
        """List the invoices of all tenants, newest first."""
        with unit_of_work(engine) as session:
            return service.list_invoices(session, tenant_id=None, cursor=cursor, limit=limit)

    @post("/billing/close", sync_to_thread=True)
    def close_period(
        self,
        data: JSONBody[CloseBody],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[Closed]:
        """Close the billing period: invoice all usage settled before an instant. Without new usage it creates no
        invoice.
        """
        return idempotent.run(lambda _: service.close(engine, data.until, actor=principal.key_id))

    @get("/reconciliation", sync_to_thread=True)
    def reconcile(self, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> Reconciliation:
        """Compare the token counts of engines, ledger and invoices."""
        with unit_of_work(engine) as session:
            return service.reconcile(session, redis)
