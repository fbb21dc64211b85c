"""Routes over invoices: a tenant's over its own, and an admin's that list all, close a period and reconcile."""

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from redis import Redis
from sqlalchemy import Engine

from billing.invoices import queries
from billing.invoices.statuses import InvoiceStatus
from billing.invoices.views import InvoiceView
from billing.invoicing import closing
from billing.invoicing.drafts import read_drafts
from billing.reconciliation import totals
from billing.reconciliation.views import Reconciliation
from billing.settings import InvoiceSettings
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.invoices.schemas import CloseBody, Closed, Drafts
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import InvalidRequest, Unavailable

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
            read = partial(queries.list_invoices, session, tenant_id=principal.own_tenant_id)
            return page_from(read, cursor=cursor, limit=limit)

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
        return _drafts(reports, invoice_rules, principal.own_tenant_id)


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
            read = partial(queries.list_invoices, session, tenant_id=tenant_id, status=status)
            return page_from(read, cursor=cursor, limit=limit)

    @get("/tenants/{tenant_id:str}/invoice-drafts", sync_to_thread=True)
    def get_invoice_drafts_of_tenant(
        self,
        tenant_id: FromPath[str],
        reports: NamedDependency[Engine],
        invoice_rules: NamedDependency[InvoiceSettings],
    ) -> Drafts:
        """Get what a tenant's next invoices would be now."""
        with unit_of_work(reports) as session:
            tenants.require(session, tenant_id)
        return _drafts(reports, invoice_rules, tenant_id)

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
        return idempotent.run(lambda _: _close(engine, data, principal))

    @get("/reconciliation", sync_to_thread=True)
    def reconcile(self, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> Reconciliation:
        """Compare the token counts of engines, ledger and invoices."""
        with unit_of_work(engine) as session:
            return totals.reconcile(session, redis)


def _drafts(reports: Engine, rules: InvoiceSettings, tenant_id: str) -> Drafts:
    return Drafts(drafts=read_drafts(reports, tenant_id, grace=timedelta(seconds=rules.billing_grace_s)))


def _close(engine: Engine, body: CloseBody, principal: Principal) -> Closed:
    """Each tenant is closed in a transaction of its own. Raises InvalidRequest for an instant that is malformed or in
    the future, NotFound for the tenant, and Unavailable when some tenants could not be closed.
    """
    until = None if body.until == "now" else _instant(body.until)
    if body.tenant_id is not None:
        with unit_of_work(engine) as session:
            tenants.require(session, body.tenant_id)
    made, failed = closing.close_all(engine, until, tenant_id=body.tenant_id, dry_run=body.dry_run)
    if not body.dry_run:
        details = {"invoices": [invoice.id for invoice in made], "failed": failed}
        with unit_of_work(engine) as session:
            audited(session, principal, "billing.closed", body.until, tenant_id=body.tenant_id, details=details)
    if failed:
        raise Unavailable(
            f"{len(made)} invoices {'would be' if body.dry_run else 'were'} made, but {len(failed)} tenants could not "
            f"be closed, such as {failed[0]}. Close again: it does the others. The control plane's log says why.",
            code="close_incomplete",
        )
    return Closed(dry_run=body.dry_run, invoices=made)


def _instant(text: str) -> datetime:
    try:
        instant: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            'until: use "now" or an RFC 3339 instant with an offset, such as 2026-01-01T00:00:00Z.', param="until"
        ) from error
    return instant
