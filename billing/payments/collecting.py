"""Collects invoices at Stripe: draft, lines, compared totals, finalized, paid; and what ends a collection.

The order is Stripe's own for invoices from outside: nothing is finalized whose lines and total differ from ours.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlmodel import Session, col, select

from billing.payments import dunning
from billing.payments.books import Books
from billing.payments.lowering import credit_note, lower, lower_to_due
from billing.payments.models import PaymentOperation, PushedInvoice
from billing.payments.operations import DeductPayment, EndInvoice, PayInvoice, PushedLine, PushInvoice
from billing.payments.outcomes import CollectionAttempt, Failure, Outcome, QueueStops
from billing.payments.pushed_invoices import collected_with, collecting
from billing.payments.queue import APPROVED, Claim, Effect, PaymentQueues
from billing.payments.settlement import note_end_at_stripe, settle_invoice
from billing.payments.steps import Find, Send, Steps
from billing.stripe_client import StripeAccount
from billing.stripe_errors import StripeCardDeclined, StripeLookupInconclusive, StripeRefused
from billing.stripe_objects import (
    MINIMUM_CHARGE_CENTS,
    StripeCustomer,
    StripeInvoice,
    StripeInvoiceLine,
    StripePayment,
)
from core.db import unit_of_work

_CURRENCY = "usd"
_MEMO: Final = "Credited, or paid outside Stripe"
_REST: Final = "rest"
"""The step that carries what is too small to be charged."""


class Collector:
    """Performs the operations on invoices."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues, books: Books) -> None:
        self._account = account
        self._queues = queues
        self._books = books

    def push(self, claim: Claim, steps: Steps, push: PushInvoice) -> Outcome:
        """Bring an invoice to Stripe and attempt its payment."""
        self._require_recent(claim, steps)
        known = steps.known("invoice")
        if known is not None and (found := self._account.invoice(known)).status == "void":
            return self._ended_there(claim, push.invoice_id, found)
        customer = self._customer_of(claim)
        # A draft that was perhaps created is brought to its end, so that nothing at Stripe asks for money twice.
        if not steps.has_begun("invoice") and not self._is_wanted(claim, push.invoice_id):
            return Outcome(result={"skipped": "nothing is due any more"}, effect=self._no_push(claim, push))
        invoice_id = steps.once(
            "invoice",
            lambda key: self._account.create_invoice(
                customer.id, our_id=push.invoice_id, currency=_CURRENCY, description=f"Invoice {push.number}", key=key
            ),
            lambda since, until: self._account.find_invoice(
                our_id=push.invoice_id, customer_id=customer.id, since=since, until=until
            ),
        )
        draft = self._account.invoice(invoice_id)
        if draft.status == "draft":
            self._add_lines(steps, draft, push)
            self._compare(invoice_id, push)
            steps.once(
                "finalize",
                lambda key: self._account.finalize_invoice(invoice_id, key=key),
                self._in(invoice_id, "open", "paid", "uncollectible", "void"),
            )
        finalized = self._account.invoice(invoice_id)
        if (finalized.total_cents, finalized.currency) != (push.total_cents, _CURRENCY):
            raise QueueStops("totals_differ", _difference(push, finalized))
        if finalized.status == "open" and finalized.due_cents + finalized.noted_cents != push.total_cents:
            raise QueueStops(
                "totals_differ",
                f"Stripe asks {finalized.due_cents} cents for {push.invoice_id}, which is {push.total_cents}: the "
                "customer has a balance at Stripe. Set it to 0 there; balances are ours.",
            )
        return self._collect(claim, steps, invoice_id, push.invoice_id)

    def pay(self, claim: Claim, steps: Steps, pay: PayInvoice) -> Outcome:
        """Attempt the payment of a pushed invoice again."""
        with unit_of_work(self._queues.engine) as session:
            row = collecting(session, pay.invoice_id)
        if row is None or row.stripe_invoice is None:
            return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
        found = self._account.invoice(row.stripe_invoice)
        if found.status not in ("open", "paid"):
            return self._ended_there(claim, row.invoice_id, found)
        return self._collect(claim, steps, row.stripe_invoice, row.invoice_id)

    def deduct(self, claim: Claim, steps: Steps, paid: DeductPayment) -> Outcome:
        """Take what was paid in another way off the invoice at Stripe."""
        with unit_of_work(self._queues.engine) as session:
            row = collecting(session, paid.invoice_id)
        if row is None or row.stripe_invoice is None:
            return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
        return self.lower(claim, steps, row, our_id=paid.payment_id, memo=paid.memo, most_cents=paid.amount_cents)

    def lower(
        self, claim: Claim, steps: Steps, row: PushedInvoice, *, our_id: str, memo: str, most_cents: int
    ) -> Outcome:
        """Lower what Stripe asks for with the invoice of ``row``. What is then under the minimum charge is carried."""
        of = row.stripe_invoice
        assert of is not None, "the caller has looked"
        due = self._due_of(row.invoice_id)
        made = lower(self._account, steps, of, due, our_id=our_id, memo=memo, most_cents=most_cents)
        carried = self._carries_rest(claim, steps, of, row.invoice_id)
        return Outcome(result={"credit_notes": [] if made is None else [made]}, effect=carried)

    def end(self, claim: Claim, steps: Steps, end: EndInvoice) -> Outcome:
        """Stop collecting an invoice. One that was collected together with another is credited on that one."""
        with unit_of_work(self._queues.engine) as session:
            row, own = collecting(session, end.invoice_id), session.get(PushedInvoice, end.invoice_id)
        if row is None or own is None or row.stripe_invoice is None:
            return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
        of = row.stripe_invoice
        if row.invoice_id != end.invoice_id:
            memo = f"Invoice {own.number}: {end.how}"
            lowered = self.lower(claim, steps, row, our_id=end.dedupe_key, memo=memo, most_cents=own.amount_cents)
            return Outcome(result=lowered.result, effect=self._ended(lowered.effect, end))
        was = self._account.invoice(of).status
        if end.how == "uncollectible":  # what was collected together with it is still wanted, and leaves it before
            others = self._due_of(row.invoice_id, without=end.invoice_id)()
            memo, due = "Collected with the next invoice", self._due_of(row.invoice_id, only=end.invoice_id)
            our_id = f"{end.dedupe_key}:others"
            lower(self._account, steps, of, due, our_id=our_id, memo=memo, most_cents=others)
        if was in ("open", "uncollectible") and was != end.how:
            self._end_own(steps, of, end)
        found, payments = read_payments(self._account, of)

        def book(session: Session) -> None:
            if any(each.status == "succeeded" for each in payments):  # the customer was faster
                settle_invoice(session, self._books, found, payments)
            dunning.collected(session, end.invoice_id, state="ended")
            if not payments:
                self._carry(session, claim, end.invoice_id, ended=end.invoice_id)

        return Outcome(result={"stripe_invoice": of, "was": was}, effect=book)

    def _end_own(self, steps: Steps, invoice_id: str, end: EndInvoice) -> None:
        account, send, wanted = self._account, self._account.void_invoice, "void"
        if end.how == "uncollectible":
            send, wanted = account.mark_uncollectible, "uncollectible"
        elif end.how == "paid_elsewhere":
            send, wanted = account.mark_paid_elsewhere, "paid"
        try:
            steps.once("end", lambda key: send(invoice_id, key=key), self._in(invoice_id, wanted))
        except StripeRefused:
            if account.invoice(invoice_id).status in ("open", "uncollectible"):
                raise

    def _customer_of(self, claim: Claim) -> StripeCustomer:
        """The tenant's customer. One that was deleted at Stripe is for an admin; nothing is created in its place."""
        assert claim.customer_id is not None, "the first operation of a queue creates the customer"
        customer = self._account.customer(claim.customer_id)
        if customer.deleted:
            raise QueueStops("customer_deleted", f"the customer {claim.customer_id} was deleted at Stripe")
        return customer

    def _require_recent(self, claim: Claim, steps: Steps) -> None:
        """An invoice that waited for long was perhaps paid in another way, so an admin has to decide."""
        with unit_of_work(self._queues.engine) as session:
            age = self._queues.clock(session) - claim.waits_since
        longest = timedelta(seconds=self._queues.settings.payments_push_age_s_max)
        if age > longest and steps.known("invoice") is None and steps.known(APPROVED) is None:
            raise QueueStops("push_old", f"the invoice waited for {age.days} days. Resume to collect it, or cancel.")

    def _is_wanted(self, claim: Claim, invoice_id: str) -> bool:
        """Whether the invoice still has to be collected: something is due, and no operation waits that ends it."""
        with unit_of_work(self._queues.engine) as session:
            ends = end_waits(session, claim.tenant_id, invoice_id)
            return not ends and self._books.amount_due_cents(session, invoice_id) > 0

    def _due_of(self, invoice_id: str, *, only: str | None = None, without: str | None = None) -> Callable[[], int]:
        """Reads what is owed of everything that one invoice at Stripe collects, or of a part of it."""

        def due() -> int:
            with unit_of_work(self._queues.engine) as session:
                return sum(
                    self._books.amount_due_cents(session, each.invoice_id)
                    for each in collected_with(session, invoice_id)
                    if only in (None, each.invoice_id) and each.invoice_id != without
                )

        return due

    def _add_lines(self, steps: Steps, draft: StripeInvoice, push: PushInvoice) -> None:
        def found(our_id: str) -> Find:
            return lambda _since, _until: the_line(self._account.lines(draft.id), our_id)

        def added(line: PushedLine) -> Send:
            return lambda key: self._account.add_line(
                draft, our_id=line.id, amount_cents=line.amount_cents, description=line.description, key=key
            )

        for line in push.sent_lines:
            steps.once(f"line:{line.id}", added(line), found(line.id))

    def _compare(self, invoice_id: str, push: PushInvoice) -> None:
        """Raises QueueStops unless the draft has exactly our lines and our total."""
        ours = sorted((line.id, line.amount_cents) for line in push.sent_lines)
        theirs = sorted((line.our_id or line.id, line.amount_cents) for line in self._account.lines(invoice_id))
        draft = self._account.invoice(invoice_id)
        if ours != theirs or draft.total_cents != push.total_cents:
            raise QueueStops("totals_differ", _difference(push, draft))

    def _collect(self, claim: Claim, steps: Steps, stripe_invoice: str, invoice_id: str) -> Outcome:
        """Attempt the payment of what is still due; nothing, if an operation waits that ends the collection."""
        with unit_of_work(self._queues.engine) as session:
            if end_waits(session, claim.tenant_id, invoice_id):
                return self._after_attempt(claim, stripe_invoice, invoice_id, None)
        found = lower_to_due(
            self._account, steps, stripe_invoice, self._due_of(invoice_id), operation_id=claim.operation_id, memo=_MEMO
        )
        carried = self._carries_rest(claim, steps, stripe_invoice, invoice_id)
        if carried is not None:
            return Outcome(result={"stripe_invoice": stripe_invoice, "status": "carried"}, effect=carried)
        return self._after_attempt(claim, stripe_invoice, invoice_id, self._attempt(steps, claim, found))

    def _attempt(self, steps: Steps, claim: Claim, found: StripeInvoice) -> CollectionAttempt:
        """One attempt to collect an open invoice with the customer's default card."""
        if found.status == "paid":
            return CollectionAttempt(how="paid", reason="")
        method = self._customer_of(claim).default_payment_method
        if method is None:
            return CollectionAttempt(how="no_method", reason="there is no payment method", hosted_url=found.hosted_url)
        try:
            steps.once("pay", lambda key: self._account.pay_invoice(found.id, key=key), self._in(found.id, "paid"))
        except StripeCardDeclined as declined:
            how: Failure = "needs_owner" if declined.needs_owner else "hard" if declined.is_hard else "declined"
            return CollectionAttempt(how=how, reason=declined.message, hosted_url=found.hosted_url, method=method)
        except StripeRefused:
            if self._account.invoice(found.id).status == "open":
                raise  # otherwise the owner paid at the same moment
        return CollectionAttempt(how="paid", reason="")

    def _carries_rest(self, claim: Claim, steps: Steps, stripe_invoice: str, invoice_id: str) -> Effect | None:
        """Take a rest under the minimum charge off an open invoice, which is paid with it at Stripe. Returns the effect
        that carries the rest to the tenant's next invoice, or None.
        """
        found = self._account.invoice(stripe_invoice)
        is_small = found.status == "open" and 0 < found.remaining_cents < MINIMUM_CHARGE_CENTS
        if not is_small and steps.known(_REST) is None:
            return None
        steps.decide(_REST, lambda: str(found.remaining_cents))
        if is_small:
            memo = f"Under {MINIMUM_CHARGE_CENTS} cents: collected with the next invoice"
            our_id = f"{claim.operation_id}:{_REST}"
            credit_note(self._account, steps, found.id, our_id, found.remaining_cents, memo, to="amount_due")

        def carry(session: Session) -> None:
            dunning.collected(session, invoice_id, state="ended")
            self._carry(session, claim, invoice_id)

        return carry

    def _carry(self, session: Session, claim: Claim, invoice_id: str, *, ended: str | None = None) -> None:
        """What is still due of everything that one invoice at Stripe collected waits for the tenant's next invoice,
        except what was ``ended``.
        """
        due = {
            each.invoice_id: self._books.amount_due_cents(session, each.invoice_id)
            for each in collected_with(session, invoice_id)
        }
        self._queues.keep(session, claim)  # locks the queue before its invoices, as those who queue operations do
        for row in collected_with(session, invoice_id):
            row.amount_cents, row.pushed_with = max(0, due[row.invoice_id]), None
            row.state = "carried" if row.amount_cents and row.invoice_id != ended else "ended"
            session.add(row)

    def _ended_there(self, claim: Claim, invoice_id: str, found: StripeInvoice) -> Outcome:
        """Somebody ended the invoice at Stripe, so nothing is collected with it. What it carried waits for the next."""

        def effect(session: Session) -> None:
            main = session.get(PushedInvoice, invoice_id)
            assert main is not None
            note_end_at_stripe(session, main, found)
            self._carry(session, claim, invoice_id, ended=invoice_id)

        return Outcome(result={"skipped": f"the invoice is {found.status} at Stripe"}, effect=effect)

    def _no_push(self, claim: Claim, push: PushInvoice) -> Effect:
        def effect(session: Session) -> None:
            is_ended = end_waits(session, claim.tenant_id, push.invoice_id)  # if written off, it is due nevertheless
            self._carry(session, claim, push.invoice_id, ended=push.invoice_id if is_ended else None)

        return effect

    def _ended(self, lowered: Effect | None, end: EndInvoice) -> Effect:
        def effect(session: Session) -> None:
            if lowered is not None:
                lowered(session)
            dunning.collected(session, end.invoice_id, state="ended")

        return effect

    def _after_attempt(
        self, claim: Claim, stripe_invoice: str, invoice_id: str, attempt: CollectionAttempt | None
    ) -> Outcome:
        """What is booked: the money, or the failed attempt. The invoice is read again, as it is now.

        Locks the invoices, then the dunning, then the queue, then its rows: the order of everybody who holds several.
        """
        found, payments = read_payments(self._account, stripe_invoice)
        # A card that was saved during the attempt: its event found no case to wake, or one that is in an attempt.
        retries_now = attempt is not None and found.status == "open" and self._has_other_card(claim, attempt.method)

        def book(session: Session) -> None:
            settle_invoice(session, self._books, found, payments)
            main = session.get(PushedInvoice, invoice_id)
            assert main is not None
            if found.status == "open" and attempt is not None:
                dunning.attempt_failed(
                    session,
                    main,
                    found.remaining_cents,
                    attempt,
                    self._queues.settings,
                    self._queues.clock,
                    retries_now=retries_now,
                )
            self._queues.keep(session, claim)
            for row in collected_with(session, invoice_id):
                row.state = "pushed"
                row.stripe_invoice = stripe_invoice if row.invoice_id == invoice_id else None
                session.add(row)

        how = "none: its end waits" if attempt is None else attempt.how
        result = {"stripe_invoice": stripe_invoice, "status": found.status, "attempt": how}
        return Outcome(result=result | ({"reason": attempt.reason} if attempt and attempt.reason else {}), effect=book)

    def _has_other_card(self, claim: Claim, tried: str | None) -> bool:
        assert claim.customer_id is not None, "an invoice was collected from it"
        default = self._account.customer(claim.customer_id).default_payment_method
        return default not in (None, tried)

    def _in(self, invoice_id: str, *statuses: str) -> Find:
        def find(_since: datetime, _until: datetime) -> StripeInvoice | None:
            found = self._account.invoice(invoice_id)
            return found if found.status in statuses else None

        return find


def read_payments(account: StripeAccount, stripe_invoice: str) -> tuple[StripeInvoice, list[StripePayment]]:
    """An invoice at Stripe with the payments that it got, as they are now."""
    found = account.invoice(stripe_invoice)
    return found, [account.payment(intent) for intent in account.invoice_payments(stripe_invoice)]


def the_line(lines: Sequence[StripeInvoiceLine], our_id: str) -> StripeInvoiceLine | None:
    """The one line that carries our id. Raises StripeLookupInconclusive."""
    found = [line for line in lines if line.our_id == our_id]
    if len(found) > 1:
        raise StripeLookupInconclusive(f"{our_id} stands on {len(found)} lines: {', '.join(line.id for line in found)}")
    return found[0] if found else None


def end_waits(session: Session, tenant_id: str, invoice_id: str) -> bool:
    """Whether an operation is queued that ends the collection of this invoice."""
    waiting = select(PaymentOperation.id).where(
        PaymentOperation.tenant_id == tenant_id,
        PaymentOperation.state == "pending",
        PaymentOperation.kind == "end_invoice",
        col(PaymentOperation.content)["invoice_id"].as_string() == invoice_id,
    )
    return session.exec(waiting.limit(1)).first() is not None


def _difference(push: PushInvoice, found: StripeInvoice) -> str:
    return (
        f"Stripe has {found.total_cents} {found.currency} cents on {found.id}, and {push.invoice_id} is "
        f"{push.total_cents} usd cents in {len(push.sent_lines)} lines. Nothing more was sent."
    )
