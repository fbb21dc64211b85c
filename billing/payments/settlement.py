"""Books what Stripe says about money: each payment intent once, however often and in whatever order it is reported.

Everything works on objects that were fetched from Stripe just before, never on what an event contained.
"""

from collections.abc import Sequence

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.notifications.outbox import notify
from billing.payments import dunning
from billing.payments.alarms import raise_alarm
from billing.payments.books import Books
from billing.payments.models import (
    PaymentOperation,
    PaymentQueue,
    PushedInvoice,
    ReceivedPayment,
    TopUp,
)
from billing.payments.operations import ChargeTopUp, top_up_reference
from billing.payments.pushed_invoices import collected_with
from billing.stripe_objects import StripeInvoice, StripePage, StripePayment
from core.db import database_now

_CURRENCY = "usd"
_NOT_PAID = "requires_payment_method"  # of a payment: every attempt was declined


def tenant_of(session: Session, customer: str | None) -> str | None:
    """The tenant whose customer this is."""
    if customer is None:
        return None
    return session.exec(select(PaymentQueue.tenant_id).where(PaymentQueue.customer_id == customer)).first()


def settle_invoice(
    session: Session, books: Books, invoice: StripeInvoice, payments: Sequence[StripePayment]
) -> str | None:
    """Book the payments of an invoice at Stripe, and end its dunning if it is paid. Returns why nothing was done."""
    row = session.get(PushedInvoice, invoice.our_id) if invoice.our_id else None
    if row is None:
        return "the invoice is none of ours"
    if tenant_of(session, invoice.customer) != row.tenant_id:
        return "the invoice's customer is another tenant's"
    for payment in payments:
        if payment.status == "succeeded" and _is_usd(session, payment, row.tenant_id):
            _book_for_invoices(session, books, row, invoice, payment)
    if invoice.status == "paid":
        for each in collected_with(session, row.invoice_id):
            dunning.collected(session, each.invoice_id)
    return None


def note_end_at_stripe(session: Session, row: PushedInvoice, invoice: StripeInvoice) -> None:
    """End the dunning of an invoice that was voided or written off at Stripe, with an alarm if Tenora did not ask for
    it: the books still have the debt.
    """
    dunning.collected(session, row.invoice_id, state="ended")
    asked = select(PaymentOperation.id).where(
        PaymentOperation.tenant_id == row.tenant_id,
        PaymentOperation.kind == "end_invoice",
        col(PaymentOperation.content)["invoice_id"].as_string() == row.invoice_id,
    )
    if row.state == "ended" or session.exec(asked.limit(1)).first() is not None:
        return
    raise_alarm(
        session,
        kind="ended_at_stripe",
        tenant_id=row.tenant_id,
        message=f"{invoice.id} was made {invoice.status} at Stripe, and invoice {row.number} ({row.invoice_id}) is "
        "still owed here. Void it, write it off, or record its payment; nothing collects it any more.",
        dedupe_key=f"ended_at_stripe:{invoice.id}:{invoice.status}",
    )


def settle_top_up(session: Session, books: Books, payment: StripePayment) -> str | None:
    """Add the credit of a top-up whose payment succeeded, or end one whose payment cannot succeed any more. Returns why
    nothing was done.
    """
    top_up = session.get(TopUp, payment.our_id, with_for_update=True) if payment.our_id else None
    if top_up is None:
        return "the payment is for no top-up; an invoice books its payments itself"
    if tenant_of(session, payment.customer) != top_up.tenant_id:
        return "the payment's customer is another tenant's"
    if payment.status != "succeeded":
        return _end_if_over(session, top_up, payment)
    if not _is_usd(session, payment, top_up.tenant_id):
        return f"the payment is in {payment.currency}"
    if not _received(session, payment, top_up.tenant_id, top_up_id=top_up.id):
        return None
    amount_cents = payment.received_cents
    books.grant_top_up(
        session, tenant_id=top_up.tenant_id, amount_cents=amount_cents, reference=top_up_reference(payment.id)
    )
    if top_up.state == "paid" or amount_cents != top_up.amount_cents:
        raise_alarm(
            session,
            kind="top_up_differs",
            tenant_id=top_up.tenant_id,
            message=f"{payment.id} over {amount_cents} cents is credited to {top_up.id}, which asked for "
            f"{top_up.amount_cents} cents and is {top_up.state}. The tenant has the credit; refund it if it wants to.",
            dedupe_key=f"top_up_differs:{payment.id}",
        )
    top_up.state, top_up.failure = "paid", None
    session.add(top_up)
    notify(
        session,
        tenant_id=top_up.tenant_id,
        event_type="top_up.succeeded",
        data={"amount_cents": amount_cents, "top_up_id": top_up.id},
        dedupe_key=f"top_up.succeeded:{payment.id}",
    )
    return None


def _end_if_over(session: Session, top_up: TopUp, payment: StripePayment) -> str | None:
    """End a top-up whose payment cannot succeed any more."""
    reason = f"the payment is {payment.status}"
    if payment.status == "canceled" or (payment.status == _NOT_PAID and _was_charged(session, top_up)):
        fail_top_up(session, top_up.id, reason, needs_owner=False)
        return None
    return reason


def leave_page(session: Session, page: StripePage, customer: str | None) -> str | None:
    """End the top-up of a page that closed without a payment. Returns why nothing was done."""
    top_up = session.get(TopUp, page.our_id, with_for_update=True) if page.our_id else None
    if top_up is None or tenant_of(session, customer) != top_up.tenant_id:
        return "the page is for no top-up of its customer"
    fail_top_up(session, top_up.id, f"the page is {page.status} and was not paid", needs_owner=False)
    return None


def _was_charged(session: Session, top_up: TopUp) -> bool:
    """Whether the saved card was charged, and the operation does not decide any more. On a page the owner may try
    another card.
    """
    operation = select(PaymentOperation.id).where(
        PaymentOperation.tenant_id == top_up.tenant_id,
        PaymentOperation.dedupe_key == ChargeTopUp.dedupe_key_of(top_up.id),
        PaymentOperation.state != "pending",
    )
    return session.exec(operation).first() is not None


def fail_top_up(session: Session, top_up_id: str, reason: str, *, needs_owner: bool) -> None:
    """Record that a top-up was not paid, and inform the tenant. A paid one stays paid. If its payment succeeds later,
    it is credited nevertheless.
    """
    top_up = session.get(TopUp, top_up_id, with_for_update=True)
    if top_up is None or top_up.state != "pending":
        return
    top_up.state, top_up.failure = "needs_owner" if needs_owner else "failed", reason[:500]
    session.add(top_up)
    notify(
        session,
        tenant_id=top_up.tenant_id,
        event_type="top_up.failed",
        data={"amount_cents": top_up.amount_cents, "reason": reason[:500], "top_up_id": top_up.id},
        dedupe_key=f"top_up.failed:{top_up.id}",
    )


def _book_for_invoices(
    session: Session, books: Books, row: PushedInvoice, invoice: StripeInvoice, payment: StripePayment
) -> None:
    """The carried invoices first, then the invoice itself, which also takes what is too much."""
    if not _received(session, payment, row.tenant_id, stripe_invoice=invoice.id):
        return
    left_cents, reference = payment.received_cents, f"stripe:{payment.id}"
    for each in collected_with(session, row.invoice_id):
        if each.invoice_id == row.invoice_id:
            continue
        part = min(left_cents, each.amount_cents, books.amount_due_cents(session, each.invoice_id))
        if part > 0:
            part_reference = f"{reference}:{each.invoice_id}"
            books.record_payment(session, invoice_id=each.invoice_id, amount_cents=part, reference=part_reference)
            left_cents -= part
    surplus = books.record_payment(session, invoice_id=row.invoice_id, amount_cents=left_cents, reference=reference)
    if surplus > 0:
        raise_alarm(
            session,
            kind="overpaid",
            tenant_id=row.tenant_id,
            message=f"{payment.id} paid {surplus} cents more than was due for invoice {row.number}; they are in the "
            "tenant's balance.",
            dedupe_key=f"overpaid:{payment.id}",
        )


def _received(
    session: Session,
    payment: StripePayment,
    tenant_id: str,
    *,
    stripe_invoice: str | None = None,
    top_up_id: str | None = None,
) -> bool:
    """Whether this transaction is the first to book the payment. A concurrent one waits here."""
    written = session.execute(
        insert(ReceivedPayment)
        .values(
            payment_intent=payment.id,
            tenant_id=tenant_id,
            stripe_invoice=stripe_invoice,
            top_up_id=top_up_id,
            amount_cents=payment.received_cents,
            created_at=database_now(session),
        )
        .on_conflict_do_nothing()
        .returning(col(ReceivedPayment.payment_intent))
    ).first()
    return written is not None


def _is_usd(session: Session, payment: StripePayment, tenant_id: str) -> bool:
    if payment.currency == _CURRENCY:
        return True
    raise_alarm(
        session,
        kind="currency",
        tenant_id=tenant_id,
        message=f"{payment.id} is in {payment.currency}, and the books are in {_CURRENCY}: nothing was booked.",
        dedupe_key=f"currency:{payment.id}",
    )
    return False
