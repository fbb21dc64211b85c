"""Closes billing periods: the usage of one tenant up to an instant becomes a final invoice, in one transaction.

A tenant's transaction holds the tenant's subscription, so usage that is recorded meanwhile waits for the commit and is
late for the next invoice. A close that is killed has closed some tenants and not others; closing again does the rest.
"""

from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.charges.inputs import period_start
from billing.charges.period import charge_period
from billing.each_tenant import each_tenant
from billing.invoices import carrying
from billing.invoices.views import InvoiceKind, InvoiceView
from billing.invoicing.finalizing import finalize
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until, read_billed_until
from billing.subscriptions.ending import ended_at_of
from core.db import database_now, unit_of_work
from core.errors import InvalidRequest
from core.periods import Period, aware


class CloseResult(NamedTuple):
    """The invoices of a close, and the tenants that could not be closed. Closing again does those."""

    invoices: list[InvoiceView]
    failed: list[str]


def close_all(
    engine: sa.Engine,
    until: datetime | None = None,
    *,
    tenant_id: str | None = None,
    dry_run: bool = False,
    least_cents: int = 1,
) -> CloseResult:
    """One invoice for every tenant, or this one, with uninvoiced usage settled before ``until`` (exclusive; None means
    now), each in a transaction of its own. A tenant that fails stops no other. A ``dry_run`` leaves nothing. Periods
    under ``least_cents`` stay open.

    Raises InvalidRequest for an invalid ``until``.
    """
    with unit_of_work(engine) as session:
        now = database_now(session)
        until = now if until is None else aware(until, "until")
        if until > now:
            raise InvalidRequest(
                f"until is {until.isoformat()}, in the future; usage up to then is not known yet. "
                f"It is {now.isoformat()}.",
                param="until",
            )
        tenant_ids = [each for each in read_billed_until(session) if tenant_id in (None, each)]
    invoices: list[InvoiceView] = []

    def close(each: str) -> None:
        invoice = close_tenant(engine, each, until, dry_run=dry_run, least_cents=least_cents)
        invoices.extend([] if invoice is None else [invoice])

    failed = each_tenant(tenant_ids, "close", close)
    return CloseResult(invoices, failed)


def close_tenant(
    engine: sa.Engine,
    tenant_id: str,
    until: datetime,
    *,
    scheduled: bool = False,
    kind: InvoiceKind = "period",
    dry_run: bool = False,
    least_cents: int = 1,
) -> InvoiceView | None:
    """Close a subscribed tenant's open period at ``until``. None when there is nothing to invoice: then the period
    stays open. A ``scheduled`` period ends in any case; below one cent it is carried to the next without an invoice.
    A ``dry_run`` makes the same invoice and takes it back: it has neither id nor number.
    """
    with unit_of_work(engine) as session:
        billed_until = lock_billed_until(session, tenant_id)
        start = period_start(session, tenant_id, billed_until)
        if start is None or start >= until:
            return None
        invoice = _close(
            session, tenant_id, Period(start, until), scheduled=scheduled, kind=kind, least_cents=least_cents
        )
        if dry_run:
            session.rollback()
            invoice = invoice and msgspec.structs.replace(invoice, id="", number="")
        return invoice


def _close(
    session: Session,
    tenant_id: str,
    period: Period,
    *,
    scheduled: bool,
    kind: InvoiceKind,
    least_cents: int,
) -> InvoiceView | None:
    lines, _ = charge_period(session, tenant_id, period, closing=True)
    waiting = carrying.read_waiting(session, tenant_id)
    ended_at = ended_at_of(session, tenant_id)
    may_wait = scheduled and ended_at is None  # a tenant that has left has no next invoice
    due = carrying.is_due(lines, waiting, scheduled=may_wait, least_cents=least_cents)
    if not due and not (scheduled and carrying.fits(lines)):
        session.rollback()  # the period stays open, so it leaves nothing to the next
        return None
    advance_billed_until(session, tenant_id, period.end)
    if not due:
        if lines:
            carrying.carry(session, tenant_id, period, lines)
        return None
    if ended_at is not None and period.end >= ended_at:
        kind = "supplementary" if period.start >= ended_at else "final"
    collected = carrying.collect(lines, waiting, scheduled=may_wait)
    return finalize(session, tenant_id, period, collected.lines, kind=kind, carried_nanos=collected.carried_nanos)
