"""Books money of payments that went back by refunds and disputes, or came to us again: each object of Stripe's once,
however often and in whatever order it is reported.
"""

from collections.abc import Iterable

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, func, select

from billing.locks import serialize_decision
from billing.models import LedgerTransfer
from billing.payments.alarms import raise_alarm
from billing.payments.books import Books
from billing.payments.models import PaymentOperation, PaymentStep, ReceivedPayment, ReturnedPayment
from billing.payments.operations import top_up_reference
from billing.payments.pushed_invoices import invoices_at
from billing.stripe_objects import StripeDispute, StripeRefund
from core.db import database_now
from core.errors import Conflict

_FAILED = ("failed", "canceled")  # of a refund
_RETURNED = "returned:"
"""The step of a cancelled operation that names a refund at Stripe which carried it out nevertheless."""


def record_refund(session: Session, books: Books, refund: StripeRefund) -> None:
    """Note a refund that an operation made, and book it back if it failed."""
    assert refund.payment_intent is not None, "we refund payment intents"
    serialize_decision(session, _going_back(refund.payment_intent))
    _returned(session, refund.id, refund.payment_intent, refund.amount_cents)
    check_refund(session, books, refund)


def check_refund(session: Session, books: Books, refund: StripeRefund) -> str | None:
    """Book a refund that failed or that we did not make, with an alarm. Returns why nothing was done. Raises Conflict
    for a refund that failed before the operation that made it has ended.
    """
    payment = session.get(ReceivedPayment, refund.payment_intent) if refund.payment_intent else None
    if payment is None:
        return "the refund is of no payment of ours"
    serialize_decision(session, _going_back(payment.payment_intent))
    if _is_new(session, refund.id):
        if refund.our_id is not None:
            _record_of_cancelled(session, payment, refund)
        elif refund.status not in _FAILED:
            _book_by_hand(session, books, payment, refund)
    if refund.status in _FAILED and not _is_new(session, refund.id) and _is_new(session, f"{refund.id}:failed"):
        _book_failed(session, books, payment, refund)
    return None


def _record_of_cancelled(session: Session, payment: ReceivedPayment, refund: StripeRefund) -> None:
    """A refund is recorded by the operation that made it, and here if that one was cancelled meanwhile. What follows
    from a refund that failed waits until the operation has ended.
    """
    made_by = session.exec(
        select(PaymentOperation)
        .join(PaymentStep, col(PaymentStep.operation_id) == PaymentOperation.id)
        .where(PaymentStep.name == f"refund:{refund.our_id}", PaymentOperation.tenant_id == payment.tenant_id)
    ).first()
    if made_by is not None and made_by.state == "cancelled":
        _carry_out(session, made_by.id, payment, refund)
    elif made_by is not None and made_by.state == "pending" and refund.status in _FAILED:
        raise Conflict(f"{refund.id} is {refund.status}, and {made_by.id}, which made it, has not ended.")


def _book_by_hand(session: Session, books: Books, payment: ReceivedPayment, refund: StripeRefund) -> None:
    """Money that a cancelled operation of ours should have returned is in the books already; all other is bad debt."""
    intent, cents = payment.payment_intent, refund.amount_cents
    cancelled = _cancelled_refund(session, payment, cents)
    if cancelled is not None:
        _carry_out(session, cancelled, payment, refund)
        return
    _returned(session, refund.id, intent, cents, cents, books.write_off(session, amount_cents=cents))
    raise_alarm(
        session,
        kind="refund_by_hand",
        tenant_id=payment.tenant_id,
        message=f"{refund.id} over {cents} cents was made at Stripe; it is booked as bad debt. Refund through "
        "credit notes or credits.",
        dedupe_key=f"refund_by_hand:{refund.id}",
    )


def _cancelled_refund(session: Session, payment: ReceivedPayment, cents: int) -> str | None:
    """A cancelled operation that should have returned this amount of the payment, and of which nothing was returned."""
    content = col(PaymentOperation.content)
    of_payment = content["payment_intent"].as_string() == payment.payment_intent
    if payment.stripe_invoice is not None:
        invoice_ids = invoices_at(session, payment.stripe_invoice)
        of_payment = content["invoice_id"].as_string().in_(invoice_ids) & (content["to"].as_string() == "refund")
    name = col(PaymentStep.name)
    returned = select(PaymentStep.operation_id).where(
        PaymentStep.operation_id == PaymentOperation.id,
        col(PaymentStep.object_id).is_not(None),
        name.startswith(_RETURNED, autoescape=True) | name.startswith("refund:", autoescape=True),
    )
    return session.exec(
        select(PaymentOperation.id)
        .where(
            PaymentOperation.tenant_id == payment.tenant_id,
            PaymentOperation.state == "cancelled",
            col(PaymentOperation.kind).in_(("refund_top_up", "push_credit_note")),
            of_payment,
            content["amount_cents"].as_integer() == cents,
            ~returned.exists(),
        )
        .order_by(col(PaymentOperation.position))
        .limit(1)
    ).first()


def _carry_out(session: Session, operation_id: str, payment: ReceivedPayment, refund: StripeRefund) -> None:
    now, name = database_now(session), f"{_RETURNED}{refund.id}"
    session.add(
        PaymentStep(
            operation_id=operation_id,
            name=name,
            idempotency_key=f"{operation_id}:{name}",
            key_since=now,
            started_at=now,
            finished_at=now,
            object_id=refund.id,
        )
    )
    _returned(session, refund.id, payment.payment_intent, refund.amount_cents)


def _book_failed(session: Session, books: Books, payment: ReceivedPayment, refund: StripeRefund) -> None:
    """Money of a refund that failed is with us again. What was bad debt is none; all other goes to the balance."""
    made = session.get(ReturnedPayment, refund.id)
    cents, was_lost = refund.amount_cents, made is not None and made.booked_cents > 0
    _come_back(session, books, payment, f"{refund.id}:failed", cents, was_lost=was_lost)
    where = "it is no bad debt any more" if was_lost else "it is on the tenant's balance"
    raise_alarm(
        session,
        kind="refund_failed",
        tenant_id=payment.tenant_id,
        message=f"{refund.id} over {cents} cents is {refund.status}: the money is with us again, and {where}.",
        dedupe_key=f"refund_failed:{refund.id}",
    )


def _come_back(
    session: Session, books: Books, payment: ReceivedPayment, name: str, cents: int, *, was_lost: bool
) -> None:
    """Book money that is with us again: what was bad debt is none, all other goes to the tenant's balance."""
    booked = (
        books.write_off(session, amount_cents=-cents)
        if was_lost
        else books.return_to_balance(session, tenant_id=payment.tenant_id, amount_cents=cents)
    )
    _returned(session, name, payment.payment_intent, -cents, -cents, booked)


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
            _come_back(session, books, payment, name, cents, was_lost=part == "lost")
    if taken is not None:
        raise_alarm(
            session,
            kind="dispute_won",
            tenant_id=payment.tenant_id,
            message=f"{dispute.id} ended as {dispute.status}: {taken.amount_cents} cents are with us again. "
            f"{taken.amount_cents - taken.booked_cents} cents of them, which were credit, are on the tenant's balance.",
            dedupe_key=f"dispute_won:{dispute.id}",
        )


def lost_cents(session: Session, payment_intents: Iterable[str]) -> int:
    """What is bad debt of these payments, because a dispute took it or somebody refunded it at Stripe."""
    total = session.exec(
        select(func.coalesce(func.sum(ReturnedPayment.booked_cents), 0))
        .join(LedgerTransfer, col(LedgerTransfer.id) == ReturnedPayment.transfer_id)
        .where(
            col(ReturnedPayment.payment_intent).in_(list(payment_intents)),
            col(LedgerTransfer.kind).in_(("write_off", "recovery")),
        )
    ).one()
    return int(total)


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
