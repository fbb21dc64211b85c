"""Books what Stripe says about money: each payment intent once, however often and in whatever order it is reported.

Everything works on objects that were fetched from Stripe just before, never on what an event contained.
"""

from collections.abc import Sequence

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, func, select

from billing.locks import serialize_decision
from billing.notifications.outbox import notify
from billing.payments import dunning
from billing.payments.alarms import raise_alarm
from billing.payments.books import Books
from billing.payments.models import (
    PaymentOperation,
    PaymentQueue,
    PushedInvoice,
    ReceivedPayment,
    ReturnedPayment,
    TopUp,
)
from billing.payments.operations import ChargeTopUp, top_up_reference
from billing.payments.pushed_invoices import collected_with
from billing.stripe_objects import StripeDispute, StripeInvoice, StripePage, StripePayment, StripeRefund
from core.db import database_now

_CURRENCY = "usd"
_FAILED = ("failed", "canceled")  # of a refund
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
        if payment.status == "canceled" or (payment.status == _NOT_PAID and _was_charged(session, top_up)):
            fail_top_up(session, top_up.id, f"the payment is {payment.status}", needs_owner=False)
        return f"the payment is {payment.status}"
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


def leave_page(session: Session, page: StripePage, customer: str | None) -> str:
    """End the top-up of a page that closed without a payment. Returns what happened."""
    top_up = session.get(TopUp, page.our_id, with_for_update=True) if page.our_id else None
    if top_up is None or tenant_of(session, customer) != top_up.tenant_id:
        return "the page is for no top-up of its customer"
    fail_top_up(session, top_up.id, f"the page is {page.status} and was not paid", needs_owner=False)
    return f"the page is {page.status} and was not paid"


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


def record_refund(session: Session, books: Books, refund: StripeRefund) -> None:
    """Note a refund that an operation made, and book it back if it failed."""
    assert refund.payment_intent is not None, "we refund payment intents"
    serialize_decision(session, _going_back(refund.payment_intent))
    _returned(session, refund.id, refund.payment_intent, refund.amount_cents)
    check_refund(session, books, refund)


def check_refund(session: Session, books: Books, refund: StripeRefund) -> str | None:
    """Book a refund that failed or that we did not make, with an alarm. Returns why nothing was done."""
    payment = session.get(ReceivedPayment, refund.payment_intent) if refund.payment_intent else None
    if payment is None:
        return "the refund is of no payment of ours"
    serialize_decision(session, _going_back(payment.payment_intent))
    intent, cents = payment.payment_intent, refund.amount_cents
    by_hand = refund.our_id is None
    if by_hand and refund.status not in _FAILED and _is_new(session, refund.id):
        _returned(session, refund.id, intent, cents, cents, books.write_off(session, amount_cents=cents))
        raise_alarm(
            session,
            kind="refund_by_hand",
            tenant_id=payment.tenant_id,
            message=f"{refund.id} over {cents} cents was made at Stripe; it is booked as bad debt. Refund through "
            "credit notes or credits.",
            dedupe_key=f"refund_by_hand:{refund.id}",
        )
    if refund.status in _FAILED and not _is_new(session, refund.id) and _is_new(session, f"{refund.id}:failed"):
        booked = (
            books.write_off(session, amount_cents=-cents)
            if by_hand
            else books.return_to_balance(session, tenant_id=payment.tenant_id, amount_cents=cents)
        )
        _returned(session, f"{refund.id}:failed", intent, -cents, -cents, booked)
        where = "it is no bad debt any more" if by_hand else "it is on the tenant's balance"
        raise_alarm(
            session,
            kind="refund_failed",
            tenant_id=payment.tenant_id,
            message=f"{refund.id} over {cents} cents is {refund.status}: the money is with us again, and {where}.",
            dedupe_key=f"refund_failed:{refund.id}",
        )
    return None


def record_dispute(session: Session, books: Books, dispute: StripeDispute) -> str | None:
    """A dispute takes credit back as soon as it is opened, and money goes back once only: what was refunded before is
    not taken again. What no unspent credit covers is bad debt. Money of a dispute that is won is with us again.
    """
    payment = session.get(ReceivedPayment, dispute.payment_intent) if dispute.payment_intent else None
    if payment is None:
        return "the dispute is about no payment of ours"
    serialize_decision(session, _going_back(payment.payment_intent))
    if dispute.status in ("warning_needs_response", "warning_under_review"):
        raise_alarm(
            session,
            kind="dispute",
            tenant_id=payment.tenant_id,
            message=f"{dispute.id} ({dispute.reason}) asks about {payment.payment_intent}: no money went back.",
            dedupe_key=f"inquiry:{dispute.id}",
        )
        return None
    if dispute.status in ("won", "prevented", "warning_closed"):
        _end_dispute(session, books, payment, dispute)
        return None
    if not _is_new(session, dispute.id):
        return None
    gone_cents = returned_cents(session, payment.payment_intent) + _queued_cents(session, payment.payment_intent)
    taken_cents = max(0, min(dispute.amount_cents, payment.amount_cents - gone_cents))
    missing_cents = taken_cents
    if payment.top_up_id is not None and taken_cents:
        missing_cents = books.take_back_top_up(
            session,
            tenant_id=payment.tenant_id,
            amount_cents=taken_cents,
            reference=top_up_reference(payment.payment_intent),
        )
    booked = books.write_off(session, amount_cents=missing_cents) if missing_cents else None
    _returned(session, dispute.id, payment.payment_intent, taken_cents, missing_cents, booked)
    raise_alarm(
        session,
        kind="dispute",
        tenant_id=payment.tenant_id,
        message=f"{dispute.id} ({dispute.reason}) disputes {dispute.amount_cents} cents of {payment.payment_intent}: "
        f"{taken_cents} cents go back, {missing_cents} cents of them are not covered by unspent credit and bad debt.",
        dedupe_key=f"dispute:{dispute.id}",
    )
    return None


def _end_dispute(session: Session, books: Books, payment: ReceivedPayment, dispute: StripeDispute) -> None:
    """Book what a dispute took as come back: what was bad debt is none, what was credit goes to the balance."""
    taken = session.get(ReturnedPayment, dispute.id)
    for part, cents in (
        () if taken is None else (("lost", taken.booked_cents), ("credit", taken.amount_cents - taken.booked_cents))
    ):
        name = f"{dispute.id}:won:{part}"
        if cents and _is_new(session, name):
            booked = (
                books.write_off(session, amount_cents=-cents)
                if part == "lost"
                else books.return_to_balance(session, tenant_id=payment.tenant_id, amount_cents=cents)
            )
            _returned(session, name, payment.payment_intent, -cents, -cents, booked)
    if taken is not None:
        raise_alarm(
            session,
            kind="dispute_won",
            tenant_id=payment.tenant_id,
            message=f"{dispute.id} ended as {dispute.status}: {taken.amount_cents} cents are with us again. "
            f"{taken.amount_cents - taken.booked_cents} cents of them, which were credit, are on the tenant's balance.",
            dedupe_key=f"dispute_won:{dispute.id}",
        )


def returned_cents(session: Session, payment_intent: str) -> int:
    """What went back of a payment."""
    total = session.exec(
        select(func.coalesce(func.sum(ReturnedPayment.amount_cents), 0)).where(
            ReturnedPayment.payment_intent == payment_intent
        )
    ).one()
    return int(total)


def _queued_cents(session: Session, payment_intent: str) -> int:
    """What is about to go back: its credit was taken out when the refund was queued."""
    amounts = session.exec(
        select(col(PaymentOperation.content)["amount_cents"].as_integer()).where(
            PaymentOperation.kind == "refund_top_up",
            PaymentOperation.state == "pending",
            col(PaymentOperation.content)["payment_intent"].as_string() == payment_intent,
        )
    )
    return sum(amounts)


def _going_back(payment_intent: str) -> str:
    return f"what goes back of {payment_intent}"


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


def _returned(
    session: Session,
    stripe_object: str,
    payment_intent: str,
    amount_cents: int,
    booked_cents: int = 0,
    transfer_id: str | None = None,
) -> None:
    session.execute(
        insert(ReturnedPayment)
        .values(
            stripe_object=stripe_object,
            payment_intent=payment_intent,
            amount_cents=amount_cents,
            booked_cents=booked_cents,
            transfer_id=transfer_id,
            created_at=database_now(session),
        )
        .on_conflict_do_nothing(index_elements=["stripe_object"])
    )


def _is_new(session: Session, stripe_object: str) -> bool:
    """Whether nothing is booked for it. The caller holds the decision about its payment."""
    return session.get(ReturnedPayment, stripe_object) is None


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
