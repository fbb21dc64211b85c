"""Books what Stripe says about money: each payment intent once, however often and in whatever order it is reported. It
also books what an admin says was paid in another way.

Everything works on objects that were fetched from Stripe just before, never on what an event contained. A payment names
its charge (``models.PaymentCharge``) by the id in its metadata, which says what the money is for.
"""

from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.credits import lots
from billing.invoices.payments import record_payment
from billing.invoices.queries import read_invoice
from billing.invoices.views import InvoiceView
from billing.limits import ceilings
from billing.notifications.outbox import notify
from billing.payments import dunning
from billing.payments.alarms import raise_alarm
from billing.payments.models import PaymentCharge, PaymentOperation, PaymentQueue, ReceivedPayment
from billing.payments.operations import top_up_reference
from billing.stripe.objects import StripePage, StripePayment
from core.db import database_now
from core.money import cents_to_nanos

CURRENCY: Final = "usd"


def tenant_of(session: Session, customer: str | None) -> str | None:
    """The tenant whose customer this is."""
    if customer is None:
        return None
    return session.exec(select(PaymentQueue.tenant_id).where(PaymentQueue.customer_id == customer)).first()


def book_payment(session: Session, payment: StripePayment) -> str | None:
    """Book a payment that succeeded: on the invoices of its charge, or as credit. Returns why nothing was done.

    A payment that did not succeed ends nothing here: the operation decides about a saved card, and on a page the owner
    may try another card, until the payment is canceled.
    """
    charge = session.get(PaymentCharge, payment.our_id, with_for_update=True) if payment.our_id else None
    if charge is None:
        return "the payment is for no charge of ours"
    if tenant_of(session, payment.customer) != charge.tenant_id:
        return "the payment's customer is another tenant's"
    if payment.status == "canceled" and charge.on_page:
        end_charge(session, charge.id, "the payment is canceled")
        return None
    if payment.status != "succeeded" or payment.currency != CURRENCY:
        return _not_booked(session, charge, payment)
    if not _is_new(session, payment, charge):
        return None
    if charge.invoice_id is None:
        _grant_credit(session, charge, payment)
    else:
        _pay_invoices(session, charge, charge.invoice_id, payment)
    charge.state, charge.failure = "paid", None
    session.add(charge)
    return None


def record_manual_payment(
    session: Session, *, invoice_id: str, amount_cents: int, reference: str, actor: str | None = None
) -> InvoiceView:
    """Pay an invoice in another way than by Stripe, and end its dunning once nothing is due. Raises as
    ``record_payment``.
    """
    paid = record_payment(
        session, invoice_id=invoice_id, amount_cents=amount_cents, source="manual", reference=reference, actor=actor
    )
    dunning.end_if_paid(session, invoice_id)
    return paid


def end_charge(session: Session, charge_id: str, reason: str, *, needs_owner: bool = False) -> None:
    """Record that a charge was not paid, and inform the tenant if it buys credit. A paid one stays paid. If its payment
    succeeds later, it is booked nevertheless.
    """
    charge = session.get(PaymentCharge, charge_id, with_for_update=True)
    if charge is None or charge.state != "pending":
        return
    charge.state, charge.failure = "needs_owner" if needs_owner else "failed", reason[:500]
    session.add(charge)
    if charge.invoice_id is None:
        notify(
            session,
            tenant_id=charge.tenant_id,
            event_type="top_up.failed",
            data={"amount_cents": charge.amount_cents, "reason": reason[:500], "top_up_id": charge.id},
            dedupe_key=f"top_up.failed:{charge.id}",
        )


def end_charge_of(session: Session, operation: PaymentOperation, reason: str) -> None:
    """End the charge of an operation, if it has one, also of one that cannot be read."""
    name = {"open_top_up_page": "request_id", "charge_top_up": "charge_id"}.get(operation.kind)
    if name is not None:
        end_charge(session, str(operation.content.get(name)), reason)
    elif operation.kind in ("collect_invoice", "open_invoice_page") and operation.decided is not None:
        end_charge(session, operation.decided, reason)


def leave_page(session: Session, page: StripePage, customer: str | None) -> str | None:
    """End the charge of a page that closed without a payment. Returns why nothing was done."""
    charge = session.get(PaymentCharge, page.our_id, with_for_update=True) if page.our_id else None
    if charge is None or tenant_of(session, customer) != charge.tenant_id:
        return "the page is for no charge of its customer"
    end_charge(session, charge.id, f"the page is {page.status} and was not paid")
    return None


def _not_booked(session: Session, charge: PaymentCharge, payment: StripePayment) -> str:
    if payment.status != "succeeded":
        return f"the payment is {payment.status}"
    raise_alarm(
        session,
        kind="currency",
        tenant_id=charge.tenant_id,
        message=f"{payment.id} is in {payment.currency}; nothing is booked for it.",
        dedupe_key=f"currency:{payment.id}",
    )
    return f"the payment is in {payment.currency}"


def _is_new(session: Session, payment: StripePayment, charge: PaymentCharge) -> bool:
    written = session.execute(
        insert(ReceivedPayment)
        .values(
            payment_intent=payment.id,
            tenant_id=charge.tenant_id,
            charge_id=charge.id,
            amount_cents=payment.received_cents,
            created_at=database_now(session),
        )
        .on_conflict_do_nothing()
        .returning(col(ReceivedPayment.payment_intent))
    ).first()
    return written is not None


def _grant_credit(session: Session, charge: PaymentCharge, payment: StripePayment) -> None:
    """It is granted however many lots there are, and raises what the tenant may spend."""
    amount_cents = payment.received_cents
    lots.grant(
        session,
        tenant_id=charge.tenant_id,
        kind="paid",
        amount_nanos=cents_to_nanos(amount_cents),
        reference=top_up_reference(payment.id),
        money_arrived=True,
    )
    ceilings.refresh(session, charge.tenant_id, to_publish=True)
    if charge.state == "paid" or amount_cents != charge.amount_cents:
        raise_alarm(
            session,
            kind="top_up_differs",
            tenant_id=charge.tenant_id,
            message=f"{payment.id} over {amount_cents} cents is credited to {charge.id}, which asked for "
            f"{charge.amount_cents} cents and is {charge.state}. The tenant has the credit; refund it if it wants to.",
            dedupe_key=f"top_up_differs:{payment.id}",
        )
    notify(
        session,
        tenant_id=charge.tenant_id,
        event_type="top_up.succeeded",
        data={"amount_cents": amount_cents, "top_up_id": charge.id},
        dedupe_key=f"top_up.succeeded:{payment.id}",
    )


def _pay_invoices(session: Session, charge: PaymentCharge, main_id: str, payment: StripePayment) -> None:
    """The small invoices first, then the charge's own, which also takes what is too much: to the tenant's balance."""
    left_cents, reference = payment.received_cents, f"stripe:{payment.id}"
    for invoice_id, cents in sorted(charge.covers.items()):
        part = min(left_cents, cents, read_invoice(session, invoice_id).amount_due_cents)
        if invoice_id != main_id and part > 0:
            record_payment(
                session,
                invoice_id=invoice_id,
                amount_cents=part,
                source="stripe",
                reference=f"{reference}:{invoice_id}",
            )
            left_cents -= part
    main = read_invoice(session, main_id)
    if left_cents:
        record_payment(session, invoice_id=main_id, amount_cents=left_cents, source="stripe", reference=reference)
    surplus_cents = left_cents - (main.amount_due_cents - read_invoice(session, main_id).amount_due_cents)
    if surplus_cents > 0:
        raise_alarm(
            session,
            kind="overpaid",
            tenant_id=charge.tenant_id,
            message=f"{payment.id} paid {surplus_cents} cents more than was due for invoice {main.number}; they are in "
            "the tenant's balance.",
            dedupe_key=f"overpaid:{payment.id}",
        )
    for invoice_id in charge.covers:
        if not read_invoice(session, invoice_id).amount_due_cents:
            dunning.end(session, invoice_id)
