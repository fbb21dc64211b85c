"""Books money of payments that went back by refunds and disputes, or came to us again: each object of Stripe's once,
however often and in whatever order it is reported.

One rule for all of it. What goes back first carries out what our books have returned already, by a refund of credit or
a credit note. The rest is taken out of the unspent credit that the payment bought. What no credit covers is bad debt.
"""

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, array, insert
from sqlmodel import Session, col, select

from billing import ledger
from billing.credits import lots
from billing.invoices.events import lock_invoices
from billing.invoices.models import CreditNote
from billing.ledger import AccountRef, TransferKind, between
from billing.limits import ceilings
from billing.locks import serialize_decision
from billing.models import LedgerTransfer
from billing.payments import outbox
from billing.payments.alarms import raise_alarm
from billing.payments.models import PaymentCharge, PaymentOperation, ReceivedPayment, ReturnedPayment
from billing.payments.operations import Refund, top_up_reference
from billing.stripe.objects import StripeDispute, StripeRefund, WentBack
from core.db import database_now, total
from core.errors import Unprocessable
from core.ids import new_id
from core.money import cents_to_nanos, format_usd

_FAILED: Final = ("failed", "canceled")  # of a refund
_INQUIRIES: Final = ("warning_needs_response", "warning_under_review")  # of a dispute
_WON: Final = ("won", "prevented", "warning_closed")


def book_returns(session: Session, payment_intent: str, found: WentBack) -> str | None:
    """Book what Stripe says went back of a payment. Returns why nothing was done."""
    payment = session.get(ReceivedPayment, payment_intent)
    if payment is None:
        return f"{payment_intent} is no payment of ours"
    _hold(session, payment)
    for refund in found.refunds:
        _book_refund(session, payment, refund)
    for dispute in found.disputes:
        _book_dispute(session, payment, dispute)
    return None


def returnable_cents(session: Session, payment_intent: str) -> tuple[int, int]:
    """How much the books have returned of a payment and Stripe has not, and how much Stripe still has of it."""
    payment = session.get(ReceivedPayment, payment_intent)
    if payment is None:
        return 0, 0
    _hold(session, payment)
    return _owed_cents(session, payment), payment.amount_cents - _gone_cents(session, payment_intent)


def lost_cents(session: Session, payment_intents: Iterable[str]) -> int:
    """What is bad debt of these payments, because a dispute took it or somebody refunded it at Stripe. A payment that
    paid several invoices counts whole for each.
    """
    return session.exec(
        select(total(ReturnedPayment.booked_cents))
        .join(LedgerTransfer, col(LedgerTransfer.id) == ReturnedPayment.transfer_id)
        .where(
            col(ReturnedPayment.payment_intent).in_(list(payment_intents)),
            col(LedgerTransfer.kind).in_(("write_off", "recovery")),
        )
    ).one()


def refund_bought(session: Session, *, tenant_id: str, payment_intent: str, amount_cents: int) -> None:
    """Queue the return of money whose credit this transaction has taken out. Raises Unprocessable above what Stripe
    still has of the payment.
    """
    owed_cents, there_cents = returnable_cents(session, payment_intent)
    if owed_cents > there_cents:
        left_nanos = cents_to_nanos(max(0, amount_cents - owed_cents + there_cents))
        raise Unprocessable(
            f"amount_nanos is {cents_to_nanos(amount_cents)}; Stripe can return {format_usd(left_nanos)} of this "
            "payment, because the rest went back before. Refund at most that.",
            code="refund_exceeds_payment",
            param="amount_nanos",
        )
    refund = Refund(refund_id=new_id("adj"), payment_intent=payment_intent, amount_cents=amount_cents)
    outbox.enqueue(session, tenant_id, refund)


def _book_refund(session: Session, payment: ReceivedPayment, refund: StripeRefund) -> None:
    has_failed = refund.status in _FAILED
    if _is_new(session, refund.id):
        if has_failed and refund.our_id is None:
            return  # nothing went back, and nothing was booked
        _go_back(session, payment, refund.id, refund.amount_cents, kind="refund_by_hand")
    if has_failed:
        _come_back(session, payment, refund.id, kind="refund_failed", how=f"is {refund.status}")


def _book_dispute(session: Session, payment: ReceivedPayment, dispute: StripeDispute) -> None:
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
        _come_back(session, payment, dispute.id, kind="dispute_won", how=f"ended as {dispute.status}")
    elif _is_new(session, dispute.id):
        left_cents = payment.amount_cents - _gone_cents(session, payment.payment_intent)
        _go_back(session, payment, dispute.id, max(0, min(dispute.amount_cents, left_cents)), kind="dispute")


def _go_back(session: Session, payment: ReceivedPayment, stripe_object: str, cents: int, *, kind: str) -> None:
    """Book what went back. An alarm says where it came from, except for a refund that the books have decided."""
    covered_cents = min(cents, _owed_cents(session, payment))
    lost = cents - covered_cents
    if lost and not _charge_of(session, payment).covers:
        reference = top_up_reference(payment.payment_intent)
        lost = lots.take_back(session, tenant_id=payment.tenant_id, reference=reference, amount_cents=lost)
        ceilings.refresh(session, payment.tenant_id, to_publish=True)
    taken_cents = cents - covered_cents - lost
    booked = _write_off(session, lost) if lost else None
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


def _come_back(session: Session, payment: ReceivedPayment, stripe_object: str, *, kind: str, how: str) -> None:
    """Book money that is with us again: what was bad debt is none, all other goes to the tenant's balance."""
    made = session.get(ReturnedPayment, stripe_object)
    if made is None:
        return
    lost, other = made.booked_cents, made.amount_cents - made.booked_cents
    if lost and _is_new(session, name := f"{stripe_object}:back:lost"):
        booked = _write_off(session, -lost)
        _write(session, name, payment.payment_intent, -lost, -lost, booked)
    if other and _is_new(session, name := f"{stripe_object}:back:balance"):
        lock_invoices(session, payment.tenant_id)
        booked = _post(session, "refund", AccountRef("customer_balance", payment.tenant_id), -cents_to_nanos(other))
        _write(session, name, payment.payment_intent, -other, -other, booked)
    raise_alarm(
        session,
        kind=kind,
        tenant_id=payment.tenant_id,
        message=f"{stripe_object} {how}: {made.amount_cents} cents are with us again. {lost} cents of them are no bad "
        f"debt any more, and {other} cents are on the tenant's balance.",
        dedupe_key=f"{kind}:{stripe_object}",
    )


def _owed_cents(session: Session, payment: ReceivedPayment) -> int:
    """What the books have returned of a payment, or of all payments of its invoices, and Stripe has not."""
    invoices = list(_charge_of(session, payment).covers)
    went_back = select(total(ReturnedPayment.amount_cents - ReturnedPayment.booked_cents))
    if not invoices:
        reference = top_up_reference(payment.payment_intent)
        decided = lots.refunded_cents(session, tenant_id=payment.tenant_id, reference=reference)
        went_back = went_back.where(ReturnedPayment.payment_intent == payment.payment_intent)
    else:
        decided = _noted_cents(session, payment.tenant_id, invoices)
        went_back = (
            went_back.join(ReceivedPayment, col(ReceivedPayment.payment_intent) == ReturnedPayment.payment_intent)
            .join(PaymentCharge, col(PaymentCharge.id) == ReceivedPayment.charge_id)
            .where(PaymentCharge.tenant_id == payment.tenant_id)
            .where(sa.type_coerce(col(PaymentCharge.covers), JSONB).has_any(array(invoices)))
        )
    return max(0, decided - session.exec(went_back).one())


def _noted_cents(session: Session, tenant_id: str, invoices: list[str]) -> int:
    """What credit notes refund of these invoices, without what an admin returns by hand."""
    noted = select(total(CreditNote.refund_cents)).where(col(CreditNote.invoice_id).in_(invoices))
    by_hand = select(total(col(PaymentOperation.result)["by_hand_cents"].as_integer())).where(
        PaymentOperation.tenant_id == tenant_id,
        PaymentOperation.kind == "refund",
        col(PaymentOperation.content)["invoice_id"].as_string().in_(invoices),
    )
    return session.exec(noted).one() - session.exec(by_hand).one()


def _gone_cents(session: Session, payment_intent: str) -> int:
    """What went back of a payment."""
    gone = select(total(ReturnedPayment.amount_cents)).where(ReturnedPayment.payment_intent == payment_intent)
    return session.exec(gone).one()


def _hold(session: Session, payment: ReceivedPayment) -> None:
    serialize_decision(session, f"what goes back of {payment.tenant_id}")


def _write(
    session: Session, stripe_object: str, payment_intent: str, cents: int, booked_cents: int, transfer_id: str | None
) -> None:
    row = {"stripe_object": stripe_object, "payment_intent": payment_intent, "amount_cents": cents}
    booked = {"booked_cents": booked_cents, "transfer_id": transfer_id, "created_at": database_now(session)}
    session.execute(insert(ReturnedPayment).values(**row, **booked))


def _is_new(session: Session, stripe_object: str) -> bool:
    """Whether nothing is booked for it. The caller holds the decision about its payment."""
    return session.get(ReturnedPayment, stripe_object) is None


def _charge_of(session: Session, payment: ReceivedPayment) -> PaymentCharge:
    charge = session.get(PaymentCharge, payment.charge_id)
    assert charge is not None, "a payment is of a charge"
    return charge


def _write_off(session: Session, cents: int) -> str:
    """Book money that Stripe took as bad debt; below 0, money that came back. Returns the transfer."""
    return _post(session, "write_off" if cents > 0 else "recovery", AccountRef("bad_debt"), cents_to_nanos(cents))


def _post(session: Session, kind: TransferKind, account: AccountRef, nanos: int) -> str:
    """Move money between an account and the platform's cash: above 0, out of it."""
    return ledger.post(session, kind, between(account, AccountRef("cash"), nanos))
