"""Books money of payments that went back by refunds and disputes, or came to us again: each object of Stripe's once,
however often and in whatever order it is reported.

One rule for all of it. What goes back first carries out what our books have returned already, by a refund of credit or
a credit note. The rest is taken out of the unspent credit that the payment bought. What no credit covers is bad debt.
"""

from collections.abc import Iterable
from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, func, select

from billing.locks import serialize_decision
from billing.models import LedgerTransfer
from billing.payments.alarms import raise_alarm
from billing.payments.books import Books
from billing.payments.models import PaymentOperation, ReceivedPayment, ReturnedPayment
from billing.payments.operations import top_up_reference
from billing.payments.pushed_invoices import invoices_at
from billing.stripe_objects import StripeDispute, StripeRefund, WentBack
from core.db import database_now

_FAILED: Final = ("failed", "canceled")  # of a refund
_INQUIRIES: Final = ("warning_needs_response", "warning_under_review")  # of a dispute
_WON: Final = ("won", "prevented", "warning_closed")


def book_returns(session: Session, books: Books, payment_intent: str, found: WentBack) -> str | None:
    """Book what Stripe says went back of a payment. Returns why nothing was done."""
    payment = session.get(ReceivedPayment, payment_intent)
    if payment is None:
        return f"{payment_intent} is no payment of ours"
    _hold(session, payment)
    for refund in found.refunds:
        _book_refund(session, books, payment, refund)
    for dispute in found.disputes:
        _book_dispute(session, books, payment, dispute)
    return None


def returnable_cents(session: Session, books: Books, payment_intent: str) -> tuple[int, int]:
    """How much the books have returned of a payment and Stripe has not, and how much Stripe still has of it."""
    payment = session.get(ReceivedPayment, payment_intent)
    if payment is None:
        return 0, 0
    _hold(session, payment)
    return _owed_cents(session, books, payment), payment.amount_cents - _gone_cents(session, payment_intent)


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


def _book_refund(session: Session, books: Books, payment: ReceivedPayment, refund: StripeRefund) -> None:
    has_failed = refund.status in _FAILED
    if _is_new(session, refund.id):
        if has_failed and refund.our_id is None:
            return  # nothing went back, and nothing was booked
        _go_back(session, books, payment, refund.id, refund.amount_cents, kind="refund_by_hand")
    if has_failed:
        _come_back(session, books, payment, refund.id, kind="refund_failed", how=f"is {refund.status}")


def _book_dispute(session: Session, books: Books, payment: ReceivedPayment, dispute: StripeDispute) -> None:
    """A dispute takes money as soon as it is opened; what was refunded before is not taken again. Money of a dispute
    that is won is with us again.
    """
    if dispute.status in _INQUIRIES:
        raise_alarm(
            session,
            kind="dispute",
            tenant_id=payment.tenant_id,
            message=f"{dispute.id} ({dispute.reason}) asks about {payment.payment_intent}: no money went back.",
            dedupe_key=f"inquiry:{dispute.id}",
        )
    elif dispute.status in _WON:
        _come_back(session, books, payment, dispute.id, kind="dispute_won", how=f"ended as {dispute.status}")
    elif _is_new(session, dispute.id):
        left_cents = payment.amount_cents - _gone_cents(session, payment.payment_intent)
        _go_back(session, books, payment, dispute.id, max(0, min(dispute.amount_cents, left_cents)), kind="dispute")


def _go_back(
    session: Session, books: Books, payment: ReceivedPayment, stripe_object: str, cents: int, *, kind: str
) -> None:
    """Book what went back. An alarm says where it came from, except for a refund that the books have decided."""
    covered_cents = min(cents, _owed_cents(session, books, payment))
    lost = cents - covered_cents
    if payment.top_up_id is not None and lost:
        reference = top_up_reference(payment.payment_intent)
        lost = books.take_back_top_up(session, tenant_id=payment.tenant_id, amount_cents=lost, reference=reference)
    taken_cents = cents - covered_cents - lost
    booked = books.write_off(session, amount_cents=lost) if lost else None
    _write(session, stripe_object, payment.payment_intent, cents, lost, booked)
    if kind == "dispute" or covered_cents < cents:
        raise_alarm(
            session,
            kind=kind,
            tenant_id=payment.tenant_id,
            message=f"{stripe_object} returns {cents} cents of {payment.payment_intent}: {covered_cents} cents were "
            f"refunded in our books before, {taken_cents} cents are taken out of unspent credit, and {lost} cents are "
            "bad debt. Refund through credit notes or credits.",
            dedupe_key=f"{kind}:{stripe_object}",
        )


def _come_back(
    session: Session, books: Books, payment: ReceivedPayment, stripe_object: str, *, kind: str, how: str
) -> None:
    """Book money that is with us again: what was bad debt is none, all other goes to the tenant's balance."""
    made = session.get(ReturnedPayment, stripe_object)
    if made is None:
        return
    lost, other = made.booked_cents, made.amount_cents - made.booked_cents
    if lost and _is_new(session, name := f"{stripe_object}:back:lost"):
        booked = books.write_off(session, amount_cents=-lost)
        _write(session, name, payment.payment_intent, -lost, -lost, booked)
    if other and _is_new(session, name := f"{stripe_object}:back:balance"):
        booked = books.return_to_balance(session, tenant_id=payment.tenant_id, amount_cents=other)
        _write(session, name, payment.payment_intent, -other, -other, booked)
    raise_alarm(
        session,
        kind=kind,
        tenant_id=payment.tenant_id,
        message=f"{stripe_object} {how}: {made.amount_cents} cents are with us again. {lost} cents of them are no bad "
        f"debt any more, and {other} cents are on the tenant's balance.",
        dedupe_key=f"{kind}:{stripe_object}",
    )


def _owed_cents(session: Session, books: Books, payment: ReceivedPayment) -> int:
    """What the books have returned of a payment, or of all payments of its invoice at Stripe, and Stripe has not."""
    went_back = select(func.coalesce(func.sum(ReturnedPayment.amount_cents - ReturnedPayment.booked_cents), 0))
    if payment.top_up_id is not None:
        decided = books.refunded_top_up_cents(
            session, tenant_id=payment.tenant_id, reference=top_up_reference(payment.payment_intent)
        )
        went_back = went_back.where(ReturnedPayment.payment_intent == payment.payment_intent)
    else:
        decided = _noted_cents(session, payment)
        went_back = went_back.join(
            ReceivedPayment, col(ReceivedPayment.payment_intent) == ReturnedPayment.payment_intent
        ).where(ReceivedPayment.stripe_invoice == payment.stripe_invoice)
    return max(0, decided - int(session.exec(went_back).one()))


def _noted_cents(session: Session, payment: ReceivedPayment) -> int:
    """What credit notes refund of the invoices that the payment paid, without what an admin returns by hand."""
    assert payment.stripe_invoice is not None, "a payment is of a top-up or of an invoice"
    content, result = col(PaymentOperation.content), col(PaymentOperation.result)
    cents = content["amount_cents"].as_integer() - func.coalesce(result["by_hand_cents"].as_integer(), 0)
    total = session.exec(
        select(func.coalesce(func.sum(cents), 0)).where(
            PaymentOperation.tenant_id == payment.tenant_id,
            PaymentOperation.kind == "push_credit_note",
            content["to"].as_string() == "refund",
            content["invoice_id"].as_string().in_(invoices_at(session, payment.stripe_invoice)),
        )
    ).one()
    return int(total)


def _gone_cents(session: Session, payment_intent: str) -> int:
    """What went back of a payment."""
    total = session.exec(
        select(func.coalesce(func.sum(ReturnedPayment.amount_cents), 0)).where(
            ReturnedPayment.payment_intent == payment_intent
        )
    ).one()
    return int(total)


def _hold(session: Session, payment: ReceivedPayment) -> None:
    serialize_decision(session, f"what goes back of {payment.stripe_invoice or payment.payment_intent}")


def _write(
    session: Session, stripe_object: str, payment_intent: str, cents: int, booked_cents: int, transfer_id: str | None
) -> None:
    row = {"stripe_object": stripe_object, "payment_intent": payment_intent, "amount_cents": cents}
    booked = {"booked_cents": booked_cents, "transfer_id": transfer_id, "created_at": database_now(session)}
    session.execute(insert(ReturnedPayment).values(**row, **booked))


def _is_new(session: Session, stripe_object: str) -> bool:
    """Whether nothing is booked for it. The caller holds the decision about its payment."""
    return session.get(ReturnedPayment, stripe_object) is None
