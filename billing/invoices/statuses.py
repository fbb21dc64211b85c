"""What an invoice is after its events: status and amounts as a fold. Pure; ``events`` reads and writes them.

    finalized → open → paid | void | uncollectible → paid

The database checks the same rules at each insert (``billing_invoice_event_follows``).
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

InvoiceStatus = Literal["finalized", "open", "paid", "void", "uncollectible"]
EventKind = Literal["finalized", "open", "payment", "credit_note", "void", "uncollectible", "recovered"]
PaymentSource = Literal["stripe", "manual", "credits", "balance"]


class InvoiceState(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice after its event number ``seq``; 0 is before its first one. ``amount_due_cents`` of an uncollectible
    invoice is what was written off and not recovered.
    """

    seq: int = 0
    status: InvoiceStatus = "finalized"
    amount_due_cents: int = 0
    paid_cents: int = 0
    credited_cents: int = 0


class EventChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an event does: ``amount_cents`` lowers the amount due (of ``finalized``: sets it), ``credited_cents`` is the
    total of a credit note.
    """

    kind: EventKind
    amount_cents: int = 0
    credited_cents: int = 0


def after(state: InvoiceState, change: EventChange) -> InvoiceState:
    """The invoice after one more event."""
    due, paid, credited, status = (
        state.amount_due_cents,
        state.paid_cents,
        state.credited_cents,
        state.status,
    )
    match change.kind:
        case "finalized":
            due = change.amount_cents
        case "open":
            status = "open" if due else "paid"
        case "payment":
            due, paid = due - change.amount_cents, paid + change.amount_cents
        case "credit_note":
            due, credited = due - change.amount_cents, credited + change.credited_cents
        case "void":
            due, paid, status = 0, 0, "void"
        case "uncollectible":
            status = "uncollectible"
        case "recovered":
            pass
    if due == 0 and status in {"open", "uncollectible"}:
        status = "paid"
    return InvoiceState(
        seq=state.seq + 1, status=status, amount_due_cents=due, paid_cents=paid, credited_cents=credited
    )


def fold(changes: Iterable[EventChange]) -> InvoiceState:
    """The invoice after all its events."""
    state = InvoiceState()
    for change in changes:
        state = after(state, change)
    return state
