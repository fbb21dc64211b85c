"""Carries lines to the tenant's next invoice: of periods of less than a cent, and of invoices that were voided.

A scheduled period of less than a cent gets no invoice, nor does one of free usage; its lines wait. The next invoice
includes them, and is made when its own lines and the waiting ones reach a cent. If its own lines are below a cent, the
invoice charges whole cents and leaves the remainder to the one after it; otherwise it is rounded as a whole. An
explicit close that would make an invoice over $0.00 leaves the period open. Usage that credit pays is due. The lines of
a void invoice wait in the same way, less what credit notes have credited of them.
"""

from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.charges.lines import DraftInvoiceLine, amount_line
from billing.invoices.models import CarriedPeriod, Invoice, InvoiceLine
from billing.subscriptions.billed_until import billed_until_of
from core.db import database_now
from core.money import NANOS_PER_CENT, cents_to_nanos, round_to_cents
from core.periods import Period


class Waiting(NamedTuple):
    """What waits for the next invoice: the lines of small periods and void invoices, and the rest of the last one."""

    lines: list[DraftInvoiceLine]
    carried_nanos: int

    @property
    def amount_nanos(self) -> int:
        return _sum(self.lines) + self.carried_nanos


NOTHING: Final = Waiting([], 0)


class Collected(NamedTuple):
    """The lines of an invoice with what was carried to it, and what it leaves to the next one."""

    lines: list[DraftInvoiceLine]
    carried_nanos: int


def read_waiting(session: Session, tenant_id: str) -> Waiting:
    """What waits for the tenant's next invoice. The caller holds the tenant's subscription."""
    last = select(Invoice.carried_nanos).where(Invoice.tenant_id == tenant_id)
    carried_nanos = session.exec(last.order_by(col(Invoice.period_end).desc()).limit(1)).first()
    return Waiting(waiting_lines(session, tenant_id), carried_nanos or 0)


def waiting_lines(session: Session, tenant_id: str) -> list[DraftInvoiceLine]:
    """The lines that wait for the tenant's next invoice, of the oldest period first."""
    invoiced = sa.exists().where(
        col(Invoice.tenant_id) == col(CarriedPeriod.tenant_id),
        col(Invoice.period_end) > col(CarriedPeriod.billed_until),
    )
    wanted = select(CarriedPeriod).where(CarriedPeriod.tenant_id == tenant_id, ~invoiced)
    return [line for row in session.exec(wanted.order_by(col(CarriedPeriod.period_end))) for line in _lines(row)]


def is_due(lines: list[DraftInvoiceLine], waiting: Waiting, *, scheduled: bool, least_cents: int = 1) -> bool:
    """Whether a period with these lines gets an invoice: none under ``least_cents``, so none over $0.00, and a
    scheduled one only from a cent on. Pure.
    """
    whole_nanos = _sum(lines) + waiting.amount_nanos
    if not (lines or waiting.lines) or abs(round_to_cents(whole_nanos)) < least_cents:
        return False
    return not scheduled or not fits(lines) or abs(whole_nanos) >= NANOS_PER_CENT


def fits(lines: list[DraftInvoiceLine]) -> bool:
    """Whether these lines are less than a cent, so that they may wait. Pure."""
    return abs(_sum(lines)) < NANOS_PER_CENT


def collect(lines: list[DraftInvoiceLine], waiting: Waiting, *, scheduled: bool) -> Collected:
    """All lines of an invoice that is made. Pure."""
    collected = [*lines, *waiting.lines]
    if waiting.carried_nanos:
        collected.append(
            amount_line("carried", waiting.carried_nanos, description="Carried over from the last invoice")
        )
    if not scheduled or abs(_sum(lines)) >= NANOS_PER_CENT:
        return Collected(collected, 0)
    whole_nanos = _sum(collected)
    carried_nanos = abs(whole_nanos) % NANOS_PER_CENT * (1 if whole_nanos >= 0 else -1)
    if carried_nanos:
        collected.append(amount_line("carried", -carried_nanos, description="Carried over to the next invoice"))
    return Collected(collected, carried_nanos)


def carry(session: Session, tenant_id: str, period: Period, lines: list[DraftInvoiceLine]) -> None:
    """Keep the lines of a small period for the next invoice."""
    _keep(session, tenant_id, period, lines, billed_until=period.end)


def carry_void(session: Session, invoice: Invoice, credited_cents: int) -> None:
    """Keep the lines of an invoice that is voided for the next invoice, less what credit notes took of its net. The
    caller holds the tenant's subscription.
    """
    of_invoice = select(InvoiceLine).where(InvoiceLine.invoice_id == invoice.id).order_by(col(InvoiceLine.position))
    lines = [msgspec.convert(line, DraftInvoiceLine, from_attributes=True) for line in session.exec(of_invoice)]
    if credited_cents:
        description = "Credited before the invoice was voided"
        lines.append(amount_line("carried", -cents_to_nanos(credited_cents), description=description))
    billed_until = billed_until_of(session, invoice.tenant_id)
    assert billed_until is not None, "a tenant with an invoice has invoiced time"
    period = Period(invoice.period_start, invoice.period_end)
    _keep(session, invoice.tenant_id, period, lines, billed_until=billed_until, invoice_id=invoice.id)


def _keep(
    session: Session,
    tenant_id: str,
    period: Period,
    lines: list[DraftInvoiceLine],
    *,
    billed_until: datetime,
    invoice_id: str | None = None,
) -> None:
    session.add(
        CarriedPeriod(
            tenant_id=tenant_id,
            period_start=period.start,
            period_end=period.end,
            amount_nanos=_sum(lines),
            lines=[msgspec.to_builtins(line) for line in lines],
            created_at=database_now(session),
            invoice_id=invoice_id,
            billed_until=billed_until,
        )
    )
    session.flush()


def _lines(row: CarriedPeriod) -> list[DraftInvoiceLine]:
    """The lines of a period. Those of usage get its bounds, which name the time of their requests."""
    stored = [msgspec.convert(line, DraftInvoiceLine) for line in row.lines]
    return [
        line
        if line.covers_from is not None
        else msgspec.structs.replace(line, covers_from=row.period_start, covers_until=row.period_end)
        for line in stored
    ]


def _sum(lines: list[DraftInvoiceLine]) -> int:
    return sum(line.amount_nanos for line in lines)
