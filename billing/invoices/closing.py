"""Closes billing periods: the usage of one tenant up to an instant becomes a final invoice, in one transaction.

A tenant's transaction holds the tenant's subscription, so usage that is recorded meanwhile waits for the commit and is
late for the next invoice. A close that is killed has closed some tenants and not others; closing again does the rest.
"""

from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, select

from billing import ledger
from billing.charges.lines import DraftInvoiceLine, with_cents
from billing.charges.period import period_lines
from billing.charges.totals import period_start
from billing.each_tenant import each_tenant
from billing.invoices.models import Invoice, InvoiceLine
from billing.invoices.queries import invoice_view
from billing.locks import serialize_decision
from billing.periods import Period, aware
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until, read_billed_until
from billing.views import InvoiceView
from core.db import database_now, unit_of_work
from core.errors import InvalidRequest
from core.ids import new_id
from core.money import cents_to_nanos


class CloseResult(NamedTuple):
    """The invoices of a close, and the tenants that could not be closed. Closing again does those."""

    invoices: list[InvoiceView]
    failed: list[str]


def close_all(engine: sa.Engine, until: datetime | None = None) -> CloseResult:
    """One invoice for every tenant with uninvoiced usage settled before ``until`` (exclusive; None means now), each in
    a transaction of its own. A tenant that fails stops no other.

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
        tenant_ids = list(read_billed_until(session))
    invoices: list[InvoiceView] = []

    def close(tenant_id: str) -> None:
        invoice = close_tenant(engine, tenant_id, until)
        invoices.extend([] if invoice is None else [invoice])

    failed = each_tenant(tenant_ids, "close", close)
    return CloseResult(invoices, failed)


def close_tenant(
    engine: sa.Engine, tenant_id: str, until: datetime, *, close_empty: bool = False
) -> InvoiceView | None:
    """Close a subscribed tenant's open period at ``until``. None when there is nothing to invoice: then the period
    stays open, or with ``close_empty`` ends without an invoice.
    """
    with unit_of_work(engine) as session:
        billed_until = lock_billed_until(session, tenant_id)
        start = period_start(session, tenant_id, billed_until)
        if start is None or start >= until:
            return None
        period = Period(start, until)
        lines = with_cents(period_lines(session, tenant_id, period, closing=True))
        if lines or close_empty:
            advance_billed_until(session, tenant_id, until)
        return _invoice(session, tenant_id, period, lines) if lines else None


def _invoice(session: Session, tenant_id: str, period: Period, lines: list[DraftInvoiceLine]) -> InvoiceView:
    amount_nanos = sum(line.amount_nanos for line in lines)
    total_cents = sum(line.amount_cents for line in lines)
    invoice_id = new_id("inv")
    session.exec(
        sa.insert(InvoiceLine),
        params=[
            {"id": new_id("il"), "invoice_id": invoice_id, "position": position, **msgspec.structs.asdict(line)}
            for position, line in enumerate(lines, start=1)
        ],
    )
    serialize_decision(session, "the next invoice number")  # held until the commit, so numbers have no gaps
    newest = session.exec(select(sa.func.coalesce(sa.func.max(Invoice.number), 0))).one()
    invoice = Invoice(
        id=invoice_id,
        number=newest + 1,
        tenant_id=tenant_id,
        period_start=period.start,
        period_end=period.end,
        status="finalised",
        currency="usd",
        total_cents=total_cents,
        amount_nanos=amount_nanos,
        created_at=database_now(session),
    )
    session.add(invoice)
    session.flush()
    ledger.post(
        session,
        ledger.invoice_posting(
            invoice_id=invoice_id,
            tenant_id=tenant_id,
            amount_nanos=amount_nanos,
            billed_nanos=cents_to_nanos(total_cents),
        ),
    )
    return invoice_view(invoice)
