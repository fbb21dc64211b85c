"""Collects invoices at Stripe: draft, lines, compared totals, finalized, paid; and what ends a collection.

The order is Stripe's own for invoices from outside: nothing is finalized whose lines and total differ from ours.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from sqlmodel import Session, select

from billing.payments import dunning
from billing.payments.books import Books
from billing.payments.models import PushedInvoice
from billing.payments.operations import EndInvoice, PayInvoice, PushedLine, PushInvoice
from billing.payments.outcomes import CollectionAttempt, Failure, Outcome, QueueStops
from billing.payments.queue import APPROVED, Claim, Effect, PaymentQueues
from billing.payments.settlement import settle_invoice
from billing.payments.steps import Find, Send, Steps
from billing.stripe_client import StripeAccount
from billing.stripe_errors import StripeCardDeclined, StripeLookupInconclusive
from billing.stripe_objects import StripeCustomer, StripeInvoice, StripeInvoiceLine, StripePayment, StripeRefund
from core.db import unit_of_work

_CURRENCY = "usd"


class Collector:
    """Performs the operations on invoices."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues, books: Books) -> None:
        self._account = account
        self._queues = queues
        self._books = books

    def push(self, claim: Claim, steps: Steps, push: PushInvoice) -> Outcome:
        """Bring an invoice to Stripe and attempt its payment."""
        self._require_recent(claim, steps)
        customer = self._customer_of(claim)
        if self._is_settled(push.invoice_id):
            return Outcome(result={"skipped": "nothing is due any more"}, effect=_carry_again(push))
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
        if finalized.status == "open" and finalized.due_cents != push.total_cents:
            raise QueueStops(
                "totals_differ",
                f"Stripe asks {finalized.due_cents} cents for {push.invoice_id}, which is {push.total_cents}: the "
                "customer has a balance at Stripe. Set it to 0 there; balances are ours.",
            )
        return self._after_attempt(invoice_id, push.invoice_id, self._attempt(steps, claim, invoice_id))

    def pay(self, claim: Claim, steps: Steps, pay: PayInvoice) -> Outcome:
        """Attempt the payment of a pushed invoice again."""
        with unit_of_work(self._queues.engine) as session:
            row = collecting(session, pay.invoice_id)
        if row is None or row.stripe_invoice is None:
            return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
        status = self._account.invoice(row.stripe_invoice).status
        if status not in ("open", "paid"):
            return Outcome(result={"skipped": f"the invoice is {status}"})
        return self._after_attempt(row.stripe_invoice, row.invoice_id, self._attempt(steps, claim, row.stripe_invoice))

    def end(self, steps: Steps, end: EndInvoice) -> Outcome:
        """Stop collecting an invoice. One that was collected together with another is credited on that one."""
        with unit_of_work(self._queues.engine) as session:
            row, own = collecting(session, end.invoice_id), session.get(PushedInvoice, end.invoice_id)
        if row is None or own is None or row.stripe_invoice is None:
            return Outcome(result={"skipped": "the invoice is not collected at Stripe"})
        invoice_id = row.stripe_invoice
        status = self._account.invoice(invoice_id).status
        if row.invoice_id != end.invoice_id:
            if status == "open" and own.amount_cents:
                memo = f"Invoice {own.number}: {end.how}"
                credit_note(self._account, steps, invoice_id, end.dedupe_key, own.amount_cents, memo, to="amount_due")
        elif status in ("open", "uncollectible") and status != end.how:
            self._end_own(steps, invoice_id, end)

        def ended(session: Session) -> None:
            dunning.collected(session, end.invoice_id, state="ended")

        return Outcome(result={"stripe_invoice": invoice_id, "was": status}, effect=ended)

    def _end_own(self, steps: Steps, invoice_id: str, end: EndInvoice) -> None:
        account = self._account
        if end.how == "void":
            steps.once("end", lambda key: account.void_invoice(invoice_id, key=key), self._in(invoice_id, "void"))
        elif end.how == "uncollectible":
            given_up = self._in(invoice_id, "uncollectible")
            steps.once("end", lambda key: account.mark_uncollectible(invoice_id, key=key), given_up)
        else:
            paid = self._in(invoice_id, "paid")
            steps.once("end", lambda key: account.pay_invoice(invoice_id, out_of_band=True, key=key), paid)

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

    def _is_settled(self, invoice_id: str) -> bool:
        with unit_of_work(self._queues.engine) as session:
            return self._books.amount_due_cents(session, invoice_id) <= 0

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

    def _attempt(self, steps: Steps, claim: Claim, invoice_id: str) -> CollectionAttempt:
        """One attempt to collect an open invoice with the customer's default card."""
        found = self._account.invoice(invoice_id)
        if found.status == "paid":
            return CollectionAttempt(how="paid", reason="")
        method = self._customer_of(claim).default_payment_method
        if method is None:
            return CollectionAttempt(how="no_method", reason="there is no payment method", hosted_url=found.hosted_url)
        try:
            steps.once("pay", lambda key: self._account.pay_invoice(invoice_id, key=key), self._in(invoice_id, "paid"))
        except StripeCardDeclined as declined:
            how: Failure = "needs_owner" if declined.needs_owner else "hard" if declined.is_hard else "declined"
            return CollectionAttempt(how=how, reason=declined.message, hosted_url=found.hosted_url, method=method)
        return CollectionAttempt(how="paid", reason="")

    def _after_attempt(self, stripe_invoice: str, invoice_id: str, attempt: CollectionAttempt) -> Outcome:
        """What is booked: the money, or the failed attempt. The invoice is read again, as it is now."""
        found, payments = read_payments(self._account, stripe_invoice)

        def book(session: Session) -> None:
            rows = session.exec(
                select(PushedInvoice).where(PushedInvoice.pushed_with == invoice_id).with_for_update()
            ).all()
            for row in rows:
                row.state = "pushed"
                row.stripe_invoice = stripe_invoice if row.invoice_id == invoice_id else None
                session.add(row)
            session.flush()
            settle_invoice(session, self._books, found, payments)
            if found.status == "open":
                main = next(row for row in rows if row.invoice_id == invoice_id)
                dunning.attempt_failed(
                    session, main, found.remaining_cents, attempt, self._queues.settings, self._queues.clock
                )

        result = {"stripe_invoice": stripe_invoice, "status": found.status, "attempt": attempt.how}
        return Outcome(result=result | ({"reason": attempt.reason} if attempt.reason else {}), effect=book)

    def _in(self, invoice_id: str, *statuses: str) -> Find:
        def find(_since: datetime, _until: datetime) -> StripeInvoice | None:
            found = self._account.invoice(invoice_id)
            return found if found.status in statuses else None

        return find


def collecting(session: Session, invoice_id: str) -> PushedInvoice | None:
    """The invoice whose invoice at Stripe collects this one: mostly itself."""
    row = session.get(PushedInvoice, invoice_id)
    if row is None or row.pushed_with is None:
        return None
    return row if row.pushed_with == invoice_id else session.get(PushedInvoice, row.pushed_with)


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


def credit_note(
    account: StripeAccount,
    steps: Steps,
    stripe_invoice: str,
    our_id: str,
    amount_cents: int,
    memo: str,
    *,
    to: StripeRefund | Literal["amount_due", "outside"],
) -> str:
    """Write a credit note at Stripe. Returns its id."""
    return steps.once(
        f"note:{our_id}",
        lambda key: account.create_credit_note(
            stripe_invoice, our_id=our_id, amount_cents=amount_cents, memo=memo, to=to, key=key
        ),
        lambda _since, _until: account.find_credit_note(stripe_invoice, our_id=our_id),
    )


def _carry_again(push: PushInvoice) -> Effect:
    """The invoice needs no collection; the small ones that it would have collected wait for the next."""

    def effect(session: Session) -> None:
        for row in session.exec(select(PushedInvoice).where(PushedInvoice.pushed_with == push.invoice_id)):
            row.state, row.pushed_with = ("ended" if row.invoice_id == push.invoice_id else "carried"), None
            session.add(row)

    return effect


def _difference(push: PushInvoice, found: StripeInvoice) -> str:
    return (
        f"Stripe has {found.total_cents} {found.currency} cents on {found.id}, and {push.invoice_id} is "
        f"{push.total_cents} usd cents in {len(push.sent_lines)} lines. Nothing more was sent."
    )
