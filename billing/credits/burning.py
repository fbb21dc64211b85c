"""Lets an invoice use credit, inside the transaction that closes its period and holds the tenant's subscription, and
returns it when the invoice is voided.

Promotional credit pays before tax, paid credit after it. Both are decided together by the burn order over the whole
period: where paid credit comes first, promotional credit pays only what is left. Tax is paid by paid credit, in
proportion to the charges that it pays.
"""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from billing.credits.balance import bounds_of
from billing.credits.burn_order import BurnableLot, burn, without_rest
from billing.credits.dated_charges import ChargedLine, charges_of_lines, scaled
from billing.credits.lot_entries import LotState, burnable, move, open_lots, read_lot
from billing.credits.lots import lapse
from billing.credits.models import CreditEntry, CreditLot
from billing.credits.open_usage import read_slices
from billing.credits.views import CreditUse
from billing.invoices.models import Invoice, InvoiceLine
from billing.periods import Period
from core.money import NANOS_PER_CENT, cents_to_nanos


def plan_promotional(session: Session, tenant_id: str, period: Period, lines: Sequence[ChargedLine]) -> list[CreditUse]:
    """What promotional lots would pay of a period with these lines. Writes nothing: for drafts."""
    return _promotional(session, open_lots(session, tenant_id), tenant_id, period, lines)


def apply_promotional(
    session: Session,
    tenant_id: str,
    period: Period,
    lines: Sequence[ChargedLine],
    *,
    invoice_id: str | None = None,
) -> list[CreditUse]:
    """Let promotional lots pay what they cover of the lines of a period, and post it: debit credits_promotional,
    credit usage_unbilled. Returns what each lot paid; together it is at most the sum of the lines.

    Pass the ``invoice_id``: the entries then name the invoice, and ``apply_paid`` knows which charges are paid.
    """
    states = open_lots(session, tenant_id)
    uses = _promotional(session, states, tenant_id, period, lines)
    _post(session, states, uses, invoice_id)
    return uses


def apply_paid(
    session: Session,
    tenant_id: str,
    invoice_id: str,
    due_cents: int,
    *,
    period: Period | None = None,
    lines: Sequence[ChargedLine] | None = None,
) -> int:
    """Let paid lots pay what they cover of the amount due, after tax, and post it: debit credits_paid, credit
    receivable. Returns the whole cents that were paid; the caller records them on the invoice and posts nothing.

    Without ``period`` and ``lines``, the invoice and its lines must be in the transaction.
    """
    states = [state for state in open_lots(session, tenant_id) if state.lot.kind == "paid"]
    if not states or due_cents <= 0:
        return 0
    paid = [state.burnable for state in states]
    promotional = _used_by(session, tenant_id, invoice_id)
    period = period or _period_of(session, invoice_id)
    lines = _lines_of(session, invoice_id) if lines is None else lines
    slices = read_slices(session, tenant_id, period, bounds_of([*paid, *promotional]))
    burned = burn([*paid, *promotional], charges_of_lines(slices, lines, period.end))
    due = scaled(burned.not_paid_by("promotional"), cents_to_nanos(due_cents))
    uses = without_rest(burn(paid, due).uses, NANOS_PER_CENT)
    _post(session, states, uses, invoice_id)
    return sum(use.amount_nanos for use in uses) // NANOS_PER_CENT


def give_back(session: Session, tenant_id: str, invoice_id: str) -> int:
    """Return to its lots all credit that an invoice used, because it is voided: paid credit debits receivable,
    promotional credit debits revenue. The caller holds the tenant's subscription. Returns the whole cents of paid
    credit. The database refuses a second return.

    What comes back to a lot that has expired lapses at once.
    """
    statement = (
        select(CreditEntry.lot_id, CreditEntry.amount_nanos)
        .join(CreditLot, col(CreditLot.id) == CreditEntry.lot_id)
        .where(CreditLot.tenant_id == tenant_id, CreditEntry.kind == "burn", CreditEntry.invoice_id == invoice_id)
        .order_by(col(CreditEntry.lot_id))
    )
    paid_nanos = 0
    used = session.exec(statement).all()
    for lot_id, amount_nanos in used:
        state = read_lot(session, tenant_id=tenant_id, lot_id=lot_id)
        move(session, state, "return", -amount_nanos, invoice_id=invoice_id)
        if state.lot.kind == "paid":
            paid_nanos -= amount_nanos
    if used:
        lapse(session, tenant_id)
    assert paid_nanos % NANOS_PER_CENT == 0, "paid credit pays invoices in whole cents"
    return paid_nanos // NANOS_PER_CENT


def _promotional(
    session: Session, states: Sequence[LotState], tenant_id: str, period: Period, lines: Sequence[ChargedLine]
) -> list[CreditUse]:
    if all(state.lot.kind == "paid" for state in states):
        return []
    lots = [state.burnable for state in states]
    slices = read_slices(session, tenant_id, period, bounds_of(lots))
    burned = burn(lots, charges_of_lines(slices, lines, period.end))
    return [use for use in burned.uses if use.kind == "promotional"]


def _post(session: Session, states: Sequence[LotState], uses: Sequence[CreditUse], invoice_id: str | None) -> None:
    """Write the burns. What a lot had lost at its expiry comes back first, if usage of before it needs it."""
    of_lot = {state.lot.id: state for state in states}
    for use in sorted(uses, key=lambda each: each.lot_id):
        state = of_lot[use.lot_id]
        if (missing := use.amount_nanos - state.balance_nanos) > 0:
            state = move(session, state, "lapse", missing)
        move(session, state, "burn", -use.amount_nanos, invoice_id=invoice_id)


def _used_by(session: Session, tenant_id: str, invoice_id: str) -> list[BurnableLot]:
    """The promotional lots that pay this invoice, with what they pay: burned again, they pay the same charges."""
    statement = (
        select(CreditLot, CreditEntry.amount_nanos)
        .join(CreditEntry, col(CreditEntry.lot_id) == CreditLot.id)
        .where(
            CreditLot.tenant_id == tenant_id,
            CreditLot.kind == "promotional",
            CreditEntry.kind == "burn",
            CreditEntry.invoice_id == invoice_id,
        )
    )
    return [burnable(lot, -amount) for lot, amount in session.exec(statement)]


def _period_of(session: Session, invoice_id: str) -> Period:
    invoice = session.exec(select(Invoice).where(Invoice.id == invoice_id)).one()
    return Period(invoice.period_start, invoice.period_end)


def _lines_of(session: Session, invoice_id: str) -> list[InvoiceLine]:
    return list(session.exec(select(InvoiceLine).where(InvoiceLine.invoice_id == invoice_id)))
