"""Gives money back through Stripe: credit notes of invoices, and refunds of top-ups. The books changed before: an
operation here only carries out what a credit note or a refund of credit has decided.
"""

from collections.abc import Sequence
from typing import Final

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
from billing.payments.returned_payments import book_returns, returnable_cents
from billing.payments.steps import Steps
from billing.stripe_client import StripeAccount
from billing.stripe_errors import StripeRefused
from billing.stripe_lookups import our_refund
from billing.stripe_objects import StripeRefund, WentBack
from core.db import unit_of_work

_Plan = tuple[list[tuple[str, int]], int]
"""How many cents of which payments go back, and how many Stripe does not have."""
_PLANS_MAX: Final = 5  # in one operation; after each, something else went back meanwhile


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
                return self._outcome(claim.tenant_id, note.note_id, [], [], by_hand_cents=note.amount_cents)
            if own is not None and own.state in ("carried", "ended"):
                return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
            raise QueueStops("note_without_invoice", f"{note.note_id}: {note.invoice_id} is not collected at Stripe")
        if note.to == "refund":
            return self._refunded(steps, claim.tenant_id, note, row.stripe_invoice)
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
        made, by_hand_cents = self._give_back(steps, [payment.payment_intent], refund.refund_id, refund.amount_cents)
        return self._outcome(payment.tenant_id, refund.refund_id, made, [], by_hand_cents=by_hand_cents)

    def _refunded(self, steps: Steps, tenant_id: str, note: PushCreditNote, stripe_invoice: str) -> Outcome:
        with unit_of_work(self._queues.engine) as session:
            wanted = select(ReceivedPayment.payment_intent).where(ReceivedPayment.stripe_invoice == stripe_invoice)
            intents = session.exec(wanted.order_by(col(ReceivedPayment.payment_intent))).all()
        refunds, by_hand_cents = self._give_back(steps, intents, note.note_id, note.amount_cents)
        notes = list[str]()
        for made in refunds:
            assert made.our_id is not None, "we made it"
            written = credit_note(
                self._account, steps, stripe_invoice, made.our_id, made.amount_cents, note.memo, to=made
            )
            notes += [] if written is None else [written]
        return self._outcome(tenant_id, note.note_id, refunds, notes, by_hand_cents=by_hand_cents)

    def _outcome(
        self, tenant_id: str, our_id: str, refunds: list[StripeRefund], notes: list[str], *, by_hand_cents: int
    ) -> Outcome:
        """``by_hand_cents`` are not at Stripe, so they have to be returned by hand."""

        def effect(session: Session) -> None:
            for refund in refunds:
                assert refund.payment_intent is not None, "we refund payment intents"
                book_returns(session, self._books, refund.payment_intent, WentBack(refunds=(refund,)))
            if by_hand_cents:
                raise_alarm(
                    session,
                    kind="refund_to_transfer",
                    tenant_id=tenant_id,
                    message=f"{our_id} refunds {by_hand_cents} cents that Stripe does not have. Return them by hand; "
                    "the books have it.",
                    dedupe_key=f"refund_to_transfer:{our_id}",
                )

        result = {"credit_notes": notes, "refunds": [each.id for each in refunds], "by_hand_cents": by_hand_cents}
        return Outcome(result=result, effect=effect)

    def _give_back(
        self, steps: Steps, intents: Sequence[str], our_id: str, wanted_cents: int
    ) -> tuple[list[StripeRefund], int]:
        """Refund at most what Stripe still has. Returns the refunds, and the cents that have to be returned by hand.

        A plan is decided once: what is left of a payment changes when it is disputed, or refunded by hand. If Stripe
        refuses a refund because of that, there is a new plan. A refusal that nothing explains stops the queue.
        """
        made = list[StripeRefund]()
        for attempt in range(_PLANS_MAX):
            left_cents = wanted_cents - sum(each.amount_cents for each in made)
            decided = steps.decide(f"plan:{attempt}", lambda: _encoded(self._plan(intents, left_cents)))  # noqa: B023 - at once
            plan, by_hand_cents = msgspec.json.decode(decided, type=_Plan)
            is_old = steps.known(f"plan:{attempt + 1}") is not None
            for position, (intent, cents) in enumerate(plan):
                name = our_id if attempt == position == 0 else f"{our_id}:{attempt}:{position}"
                if is_old and steps.known(f"refund:{name}") is None:
                    break
                try:
                    made.append(self._refund(steps, intent, name, cents))
                except StripeRefused:
                    if self._plan(intents, wanted_cents - sum(each.amount_cents for each in made)) == (
                        plan[position:],
                        by_hand_cents,
                    ):
                        raise
                    break
            else:
                return made, by_hand_cents
        raise QueueStops("refund_refused", f"{our_id}: Stripe refused {_PLANS_MAX} plans for {wanted_cents} cents")

    def _plan(self, intents: Sequence[str], wanted_cents: int) -> _Plan:
        """From which payments how much goes back, and how much of it Stripe does not have. What went back without us is
        booked first.
        """
        found = {intent: self._account.went_back(intent) for intent in intents}
        plan, left_cents = list[tuple[str, int]](), wanted_cents
        with unit_of_work(self._queues.engine) as session:
            for intent in intents:
                book_returns(session, self._books, intent, found[intent])
            for intent in intents:
                owed_cents, there_cents = returnable_cents(session, self._books, intent)
                left_cents = min(left_cents, owed_cents - sum(cents for _, cents in plan))
                part = min(left_cents, there_cents)
                if part > 0:
                    plan.append((intent, part))
                    left_cents -= part
        return plan, max(0, left_cents)

    def _refund(self, steps: Steps, intent: str, our_id: str, amount_cents: int) -> StripeRefund:
        made = steps.once(
            f"refund:{our_id}",
            lambda key: self._account.refund(intent, our_id=our_id, amount_cents=amount_cents, key=key),
            lambda _since, _until: our_refund(self._account.went_back(intent), our_id),
        )
        return self._account.refund_of_id(made)


def _encoded(plan: _Plan) -> str:
    return msgspec.json.encode(plan).decode()
