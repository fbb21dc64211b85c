"""Gives money back through Stripe: credit notes of invoices, and refunds of top-ups. The books changed before: an
operation here only carries out what a credit note or a refund of credit has decided.
"""

import msgspec
from sqlmodel import Session, col, select

from billing.payments.alarms import raise_alarm
from billing.payments.books import Books
from billing.payments.collecting import Collector
from billing.payments.lowering import credit_note
from billing.payments.models import PushedInvoice, ReceivedPayment
from billing.payments.operations import PushCreditNote, RefundTopUp
from billing.payments.outcomes import Outcome, QueueStops
from billing.payments.pushed_invoices import collecting
from billing.payments.queue import Claim, PaymentQueues
from billing.payments.returned_payments import record_refund, returned_cents
from billing.payments.steps import Steps
from billing.stripe_client import StripeAccount
from billing.stripe_objects import StripeRefund
from core.db import unit_of_work

_Plan = tuple[list[tuple[str, int]], int]
"""How many cents of which payments go back, and how many are left."""


class Returner:
    """Performs the operations that give money back."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues, books: Books, collector: Collector) -> None:
        self._account = account
        self._queues = queues
        self._books = books
        self._collector = collector

    def credit(self, claim: Claim, steps: Steps, note: PushCreditNote) -> Outcome:
        """Write a credit note at Stripe, and refund the money if the note says so."""
        with unit_of_work(self._queues.engine) as session:
            row, own = collecting(session, note.invoice_id), session.get(PushedInvoice, note.invoice_id)
        if row is None or row.stripe_invoice is None:
            if note.to == "refund":
                return self._refund_outcome(note, [], [], left_cents=note.amount_cents)
            if own is not None and own.state in ("carried", "ended"):
                return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
            raise QueueStops("note_without_invoice", f"{note.note_id}: {note.invoice_id} is not collected at Stripe")
        if note.to == "refund":
            return self._refunded(steps, note, row.stripe_invoice)
        if note.to == "amount_due":
            return self._collector.lower(
                claim, steps, row, our_id=note.note_id, memo=note.memo, most_cents=note.amount_cents
            )
        # What a paid invoice is credited is in the tenant's balance with us.
        made = credit_note(
            self._account, steps, row.stripe_invoice, note.note_id, note.amount_cents, note.memo, to="outside"
        )
        return Outcome(result={"credit_notes": [] if made is None else [made]})

    def refund_top_up(self, steps: Steps, refund: RefundTopUp) -> Outcome:
        """Return the money of a top-up."""
        with unit_of_work(self._queues.engine) as session:
            payment = session.get(ReceivedPayment, refund.payment_intent)
        if payment is None:
            raise QueueStops("refund_without_payment", f"{refund.refund_id}: {refund.payment_intent} was not received")
        made = self._refund(steps, refund.payment_intent, refund.refund_id, refund.amount_cents)
        return Outcome(result={"refunds": [made.id]}, effect=lambda session: self._record(session, [made]))

    def _refunded(self, steps: Steps, note: PushCreditNote, stripe_invoice: str) -> Outcome:
        refunds, notes = list[StripeRefund](), list[str]()
        # Decided once: what is left of a payment changes when a dispute is opened between two attempts.
        decided = steps.decide("plan", lambda: msgspec.json.encode(self._plan(stripe_invoice, note)).decode())
        plan, left_cents = msgspec.json.decode(decided, type=_Plan)
        for number, (intent, amount_cents) in enumerate(plan):
            our_id = note.note_id if number == 0 else f"{note.note_id}:{number}"
            made = self._refund(steps, intent, our_id, amount_cents)
            refunds.append(made)
            written = credit_note(self._account, steps, stripe_invoice, our_id, amount_cents, note.memo, to=made)
            notes += [] if written is None else [written]
        return self._refund_outcome(note, refunds, notes, left_cents=left_cents)

    def _refund_outcome(
        self, note: PushCreditNote, refunds: list[StripeRefund], notes: list[str], *, left_cents: int
    ) -> Outcome:
        """``left_cents`` were not paid at Stripe, so they have to be returned by hand."""

        def effect(session: Session) -> None:
            self._record(session, refunds)
            if left_cents:
                tenant_id = session.exec(
                    select(PushedInvoice.tenant_id).where(PushedInvoice.invoice_id == note.invoice_id)
                ).one()
                raise_alarm(
                    session,
                    kind="refund_to_transfer",
                    tenant_id=tenant_id,
                    message=f"{note.note_id} refunds {note.amount_cents} cents of {note.invoice_id}, of which "
                    f"{left_cents} cents were not paid at Stripe. Return them by hand; the books have it.",
                    dedupe_key=f"refund_to_transfer:{note.note_id}",
                )

        result = {"credit_notes": notes, "refunds": [each.id for each in refunds], "by_hand_cents": left_cents}
        return Outcome(result=result, effect=effect)

    def _plan(self, stripe_invoice: str, note: PushCreditNote) -> _Plan:
        """From which payments how much goes back, and what is left."""
        plan, left_cents = [], note.amount_cents
        with unit_of_work(self._queues.engine) as session:
            payments = session.exec(
                select(ReceivedPayment)
                .where(ReceivedPayment.stripe_invoice == stripe_invoice)
                .order_by(col(ReceivedPayment.payment_intent))
            ).all()
            for payment in payments:
                there = payment.amount_cents - returned_cents(session, payment.payment_intent)
                part = min(left_cents, there)
                if part > 0:
                    plan.append((payment.payment_intent, part))
                    left_cents -= part
        return plan, left_cents

    def _refund(self, steps: Steps, intent: str, our_id: str, amount_cents: int) -> StripeRefund:
        made = steps.once(
            f"refund:{our_id}",
            lambda key: self._account.refund(intent, our_id=our_id, amount_cents=amount_cents, key=key),
            lambda _since, _until: self._account.find_refund(intent, our_id=our_id),
        )
        return self._account.refund_of_id(made)

    def _record(self, session: Session, refunds: list[StripeRefund]) -> None:
        for refund in refunds:
            record_refund(session, self._books, refund)
