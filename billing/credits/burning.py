"""Lets an invoice use credit, inside the transaction that closes its period and holds the tenant's subscription, and
returns it when the invoice is voided.

Promotional credit pays before tax, paid credit after it. Both are decided together by the burn order over the whole
period: where paid credit comes first, promotional credit pays only what is left. Tax is paid by paid credit, in
proportion to the charges that it pays.
"""

from collections.abc import Sequence

import msgspec
from sqlmodel import Session, col, select

from billing.credits.balance import bounds_of
from billing.credits.burn_order import BurnableLot, burn, without_rest
from billing.credits.dated_charges import ChargedLine, charges_of_lines, periods_of, scaled
from billing.credits.lot_entries import LotState, burnable, move, open_lots, read_lot
from billing.credits.lots import lapse
from billing.credits.models import CreditEntry, CreditLot
from billing.credits.open_usage import read_slices
from billing.credits.views import CreditUse
from core.money import NANOS_PER_CENT, cents_to_nanos
from core.periods import Period


class CreditPlan:
    """What a tenant's lots would pay of invoices that follow each other. Writes nothing: for drafts."""

    def __init__(self, session: Session, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id
        self._lots = [state.burnable for state in open_lots(session, tenant_id)]
        self._promotional: list[BurnableLot] = []

    def pay_promotional(self, period: Period, lines: Sequence[ChargedLine]) -> list[CreditUse]:
        """Let promotional lots pay what they cover of the next period, as ``apply_promotional`` does."""
        uses = _promotional(self._session, self._lots, self._tenant_id, period, lines)
        self._promotional = [
            msgspec.structs.replace(lot, left_nanos=use.amount_nanos)
            for use in uses
            for lot in self._lots
            if lot.id == use.lot_id
        ]
        self._take(uses)
        return uses

    def pay_due(self, period: Period, lines: Sequence[ChargedLine], due_cents: int) -> None:
        """Let paid lots pay what is due of the same period, as ``apply_paid`` does."""
        paid = [lot for lot in self._lots if lot.kind == "paid"]
        self._take(_paid(self._session, paid, self._promotional, self._tenant_id, period, lines, due_cents))

    def _take(self, uses: Sequence[CreditUse]) -> None:
        taken = {use.lot_id: use.amount_nanos for use in uses}
        left = [msgspec.structs.replace(lot, left_nanos=lot.left_nanos - taken.get(lot.id, 0)) for lot in self._lots]
        self._lots = [lot for lot in left if lot.left_nanos > 0]


def apply_promotional(
    session: Session,
    tenant_id: str,
    period: Period,
    lines: Sequence[ChargedLine],
    *,
    invoice_id: str,
) -> list[CreditUse]:
    """Let promotional lots pay what they cover of the lines of a period, and post it: debit credits_promotional,
    credit usage_unbilled. Returns what each lot paid; together it is at most the sum of the lines. The entries name the
    invoice, so ``apply_paid`` knows which charges are paid.
    """
    states = open_lots(session, tenant_id)
    uses = _promotional(session, [state.burnable for state in states], tenant_id, period, lines)
    _post(session, states, uses, invoice_id)
    return uses


def apply_paid(
    session: Session,
    tenant_id: str,
    period: Period,
    lines: Sequence[ChargedLine],
    *,
    invoice_id: str,
    due_cents: int,
) -> int:
    """Let paid lots pay what they cover of the amount due, after tax, and post it: debit credits_paid, credit
    receivable. Returns the whole cents that were paid; the caller records them on the invoice and posts nothing.
    """
    states = [state for state in open_lots(session, tenant_id) if state.lot.kind == "paid"]
    if not states or due_cents <= 0:
        return 0
    promotional = _used_by(session, tenant_id, invoice_id)
    paid = [state.burnable for state in states]
    uses = _paid(session, paid, promotional, tenant_id, period, lines, due_cents)
    _post(session, states, uses, invoice_id)
    return sum(use.amount_nanos for use in uses) // NANOS_PER_CENT


def give_back(session: Session, tenant_id: str, invoice_id: str) -> int:
    """Return to its lots all credit that an invoice used, because it is voided: paid credit debits receivable,
    promotional credit debits usage_unbilled. The caller holds the tenant's subscription. Returns the whole cents of
    paid credit. The database refuses a second return.

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
    session: Session, lots: Sequence[BurnableLot], tenant_id: str, period: Period, lines: Sequence[ChargedLine]
) -> list[CreditUse]:
    if all(lot.kind == "paid" for lot in lots):
        return []
    slices = read_slices(session, tenant_id, [period, *periods_of(lines)], bounds_of(lots))
    burned = burn(lots, charges_of_lines(slices, lines, period.end))
    return [use for use in burned.uses if use.kind == "promotional"]


def _paid(
    session: Session,
    paid: Sequence[BurnableLot],
    promotional: Sequence[BurnableLot],
    tenant_id: str,
    period: Period,
    lines: Sequence[ChargedLine],
    due_cents: int,
) -> list[CreditUse]:
    """What paid lots pay of the amount due. ``promotional`` are the lots that pay the invoice, with what they pay."""
    if not paid or due_cents <= 0:
        return []
    slices = read_slices(session, tenant_id, [period, *periods_of(lines)], bounds_of([*paid, *promotional]))
    burned = burn([*paid, *promotional], charges_of_lines(slices, lines, period.end))
    due = scaled(burned.not_paid_by("promotional"), cents_to_nanos(due_cents))
    return without_rest(burn(paid, due).uses, NANOS_PER_CENT)


def _post(session: Session, states: Sequence[LotState], uses: Sequence[CreditUse], invoice_id: str) -> None:
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
