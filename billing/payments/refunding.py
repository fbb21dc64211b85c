"""Gives money back through Stripe. The books changed before: an operation only carries out what a credit note or a
refund of credit has decided. Each operation makes at most one refund of one payment; the next operation makes the rest.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlmodel import Session

from billing.invoices.events import payment_intents
from billing.payments import outbox
from billing.payments.alarms import raise_alarm
from billing.payments.calls import Call
from billing.payments.models import ReceivedPayment
from billing.payments.operations import Refund
from billing.payments.queue import Outcome, PaymentQueues, QueueStops
from billing.payments.returned_payments import book_returns, returnable_cents
from billing.stripe.client import StripeAccount
from billing.stripe.errors import StripeRefused
from billing.stripe.lookups import the_only
from billing.stripe.objects import StripeRefund, WentBack
from core.db import unit_of_work

_BY_HAND: Final = ""
"""In place of the payment: Stripe does not have the money."""


class _Plan(msgspec.Struct, frozen=True):
    """How much of which payment goes back, and how much is left for the next operation."""

    payment_intent: str
    cents: int
    left_cents: int


class Refunder:
    """Performs the operations that give money back."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues) -> None:
        self._account = account
        self._queues = queues

    def refund(self, call: Call, refund: Refund) -> Outcome:
        """Refund at most what the books have returned and Stripe still has. A plan is decided once: what is left of a
        payment changes when it is disputed, or refunded by hand. If Stripe refuses a refund because of that, there is a
        new plan. A refusal that nothing explains stops the queue.
        """
        while True:
            plan = self._decided(call, refund)
            if plan.payment_intent == _BY_HAND or plan.cents == 0:
                return self._outcome(call, refund, plan, None)
            try:
                made = self._sent(call, refund, plan)
            except StripeRefused:
                if self._plan(refund) == plan:
                    raise
                call.start_over()
                continue
            return self._outcome(call, refund, plan, made)

    def _sent(self, call: Call, refund: Refund, plan: _Plan) -> str:
        our_id = refund.refund_id if refund.part == 1 else f"{refund.refund_id}:{refund.part}"

        def find(_since: datetime, _until: datetime) -> StripeRefund | None:
            refunds = self._account.went_back(plan.payment_intent).refunds
            return the_only([each for each in refunds if each.our_id == our_id], our_id)

        return call.once(
            lambda key: self._account.refund(plan.payment_intent, our_id=our_id, amount_cents=plan.cents, key=key), find
        )

    def _decided(self, call: Call, refund: Refund) -> _Plan:
        decided = call.decided()
        if decided is None:
            plan = msgspec.json.encode(self._plan(refund)).decode()
            decided = call.decide(lambda _session: plan)
            assert decided is not None, "there is always a plan"
        return msgspec.json.decode(decided, type=_Plan)

    def _plan(self, refund: Refund) -> _Plan:
        """The first payment of which something goes back. What went back without us is booked first."""
        with unit_of_work(self._queues.engine) as session:
            intents = self._intents(session, refund)
        found = {intent: self._account.went_back(intent) for intent in intents}
        wanted_cents, part, chosen = refund.amount_cents, 0, _BY_HAND
        with unit_of_work(self._queues.engine) as session:
            for intent in intents:
                book_returns(session, intent, found[intent])
            for intent in intents:
                owed_cents, there_cents = returnable_cents(session, intent)
                wanted_cents = min(wanted_cents, owed_cents)
                if part == 0 and there_cents > 0:
                    part, chosen = min(wanted_cents, there_cents), intent
        if chosen == _BY_HAND:
            return _Plan(_BY_HAND, wanted_cents, 0)
        part = min(part, wanted_cents)
        return _Plan(chosen, part, wanted_cents - part)

    def _intents(self, session: Session, refund: Refund) -> Sequence[str]:
        if refund.invoice_id is not None:
            return payment_intents(session, refund.invoice_id)
        assert refund.payment_intent is not None, "of an invoice, or of one payment"
        if session.get(ReceivedPayment, refund.payment_intent) is None:
            raise QueueStops("refund_without_payment", f"{refund.refund_id}: {refund.payment_intent} was not received")
        return [refund.payment_intent]

    def _outcome(self, call: Call, refund: Refund, plan: _Plan, made: str | None) -> Outcome:
        """Books the refund, and queues what is left. What Stripe does not have is returned by hand."""
        by_hand_cents = plan.cents if plan.payment_intent == _BY_HAND else 0
        written = None if made is None else self._account.refund_of_id(made)

        def effect(session: Session) -> None:
            if written is not None:
                book_returns(session, plan.payment_intent, WentBack(refunds=(written,)))
            if plan.left_cents:
                following = msgspec.structs.replace(refund, amount_cents=plan.left_cents, part=refund.part + 1)
                outbox.enqueue(session, call.claim.tenant_id, following)
            if by_hand_cents:
                raise_alarm(
                    session,
                    kind="refund_to_transfer",
                    tenant_id=call.claim.tenant_id,
                    message=f"{refund.refund_id} refunds {by_hand_cents} cents that Stripe does not have. Return them "
                    "by hand; the books have it.",
                    dedupe_key=f"refund_to_transfer:{refund.refund_id}",
                )

        returned_cents = refund.amount_cents - plan.left_cents - by_hand_cents
        result = {"refund": made, "returned_cents": returned_cents, "by_hand_cents": by_hand_cents}
        return Outcome(result=result, effect=effect)
