"""Closes billing periods and reads invoices. ``billing`` does the work; this room adds audit rows and paging."""

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from redis import Redis
from sqlalchemy import Engine
from sqlmodel import Session

from billing.invoices import queries
from billing.invoices.statuses import InvoiceStatus
from billing.invoices.views import InvoiceView
from billing.invoicing import closing
from billing.invoicing.drafts import read_drafts
from billing.reconciliation import totals
from billing.reconciliation.views import Reconciliation
from billing.settings import InvoiceSettings
from control_plane.audit import service as audit
from control_plane.invoices.schemas import CloseBody, Closed, Drafts, InvoiceWithLines
from control_plane.paging import Page, decode_cursor, encode_cursor
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import InvalidRequest, Unavailable


def close(engine: Engine, body: CloseBody, *, actor: str) -> Closed:
    """Invoice all uninvoiced usage settled before an instant, of all tenants or of one. Each tenant is closed in a
    transaction of its own. Raises InvalidRequest for an instant that is malformed, without offset or in the future,
    NotFound for the tenant, and Unavailable when some tenants could not be closed: closing again does those.
    """
    until = None if body.until == "now" else _instant(body.until)
    with unit_of_work(engine) as session:
        if body.tenant_id is not None:
            tenants.get(session, body.tenant_id)
    made, failed = closing.close_all(engine, until, tenant_id=body.tenant_id, dry_run=body.dry_run)
    if not body.dry_run:
        with unit_of_work(engine) as session:
            audit.record(
                session,
                actor=actor,
                action="billing.closed",
                target=body.until,
                tenant_id=body.tenant_id,
                details={"invoices": [invoice.id for invoice in made], "failed": failed},
            )
    if failed:
        raise Unavailable(
            f"{len(made)} invoices {'would be' if body.dry_run else 'were'} made, but {len(failed)} tenants could not "
            f"be closed, such as {failed[0]}. Close again: it does the others. The control plane's log says why.",
            code="close_incomplete",
        )
    return Closed(dry_run=body.dry_run, invoices=made)


def list_invoices(
    session: Session, *, tenant_id: str | None, cursor: str | None, limit: int, status: InvoiceStatus | None = None
) -> Page[InvoiceView]:
    """One tenant's invoices, or all tenants' with None (admins only), newest first."""
    found = queries.list_invoices(
        session, tenant_id=tenant_id, status=status, after=decode_cursor(cursor), limit=limit + 1
    )
    following = encode_cursor(found[limit - 1].id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)


def get(session: Session, *, invoice_id: str, tenant_id: str | None) -> InvoiceWithLines:
    """One of the tenant's invoices, or any one with None (admins only), with all its parts. Raises NotFound."""
    found = msgspec.structs.asdict(queries.read_document(session, invoice_id, tenant_id=tenant_id))
    return InvoiceWithLines(**msgspec.structs.asdict(found.pop("invoice")), **found)


def drafts(engine: Engine, rules: InvoiceSettings, *, tenant_id: str) -> Drafts:
    """What the tenant's next invoices would be now."""
    grace = timedelta(seconds=rules.billing_grace_s)
    return Drafts(drafts=read_drafts(engine, tenant_id, grace=grace))


def _instant(text: str) -> datetime:
    try:
        instant: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            'until: use "now" or an RFC 3339 instant with an offset, such as 2026-01-01T00:00:00Z.', param="until"
        ) from error
    return instant


def reconcile(session: Session, redis: Redis) -> Reconciliation:
    """Compare the token counts of engines, ledger and invoices. Raises Unavailable when Redis does not answer."""
    return totals.reconcile(session, redis)
