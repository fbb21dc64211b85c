"""Asks tenants for money: what is due of invoices, and for credit, with a saved card or on a page of Stripe's.

A charge asks for one payment intent. What happens if this process dies, line by line:

1. ``Call.decide`` commits the charge: how much, for which invoices, with which card. (That of a top-up was committed
   with its operation.) No payment is asked for yet; the next worker finds the charge and goes on with it.
2. ``Call.once`` commits the idempotency key, calls Stripe, and commits the intent's id. If the worker dies in between,
   the next one sends the same parameters under the same key and gets the same intent. If the key is too old for that,
   it looks the intent up by the charge's id. So a charge has one intent (docs/BILLING.md has the exception). Nothing
   is stored of a declined card before 3.: the same key gets the same decline.
3. ``PaymentQueues.finish`` books the money (``booking.book_payment``) or the failure (``dunning``) and ends the
   operation, in one transaction. Killed before it, 2. finds the intent. Stripe's event books it, too: each intent is
   booked once.
"""

import secrets
from datetime import timedelta
from functools import partial
from typing import Final

from sqlmodel import Session, col, select

from billing.invoices.events import lock_invoice
from billing.invoices.queries import list_invoices, read_invoice
from billing.payments import dunning
from billing.payments.booking import CURRENCY, book_payment, end_charge
from billing.payments.calls import Call
from billing.payments.dunning import Failure
from billing.payments.models import PaymentCharge
from billing.payments.operations import ChargeTopUp, CollectInvoice, OpenInvoicePage, OpenTopUpPage
from billing.payments.queue import Claim, Effect, Outcome, PaymentQueues, QueueStops
from billing.payments.settings import DESCRIPTION_LENGTH_MAX
from billing.settings import INVOICES_PAGE_MAX
from billing.stripe.client import StripeAccount
from billing.stripe.errors import StripeCardDeclined, StripeRefused, StripeUnavailable
from billing.stripe.objects import MINIMUM_CHARGE_CENTS, StripePage
from core.db import database_now, unit_of_work
from core.ids import new_id

_CREDIT: Final = "Tenora credit"


class Charging:
    """Performs the operations that ask for money."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues) -> None:
        self._account = account
        self._queues = queues

    def collect(self, call: Call, collect: CollectInvoice) -> Outcome:
        """Charge the saved card for what is due of an invoice now, and of small ones that wait for it."""
        self._require_recent(call.claim, collect)
        card = self._card_of(call)
        for page in self._open_pages(call.claim.tenant_id):
            self._close(page)  # so that the owner does not pay what the card pays
        charge = self._decided(call, collect.invoice_id, card)
        is_repeated = call.claim.attempts > 1
        if charge is not None and is_repeated and self._is_too_much(charge) and not self._is_at_stripe(call, charge):
            reason = "less is due, and nothing was charged"
            call.start_over(partial(end_charge, charge_id=charge.id, reason=reason))
            charge = self._decided(call, collect.invoice_id, card)
        if charge is None:
            return self._nothing_due(collect.invoice_id)
        return self._charge(call, charge)

    def charge_top_up(self, call: Call, top_up: ChargeTopUp) -> Outcome:
        """Buy credit with the saved card. Credit is added only once the payment has succeeded."""
        card = self._card_of(call)

        def choose(session: Session) -> str:
            charge = _charge(session, top_up.charge_id)
            charge.method = card  # decided once: another card under the same key would be another request
            session.add(charge)
            return charge.id

        call.decide(choose)
        with unit_of_work(self._queues.engine) as session:
            charge = _charge(session, top_up.charge_id)
        return self._charge(call, charge)

    def open_top_up_page(self, call: Call, page: OpenTopUpPage) -> Outcome:
        """Open the page that takes one payment for credit."""
        with unit_of_work(self._queues.engine) as session:
            charge = _charge(session, page.request_id)
        return self._open(call, charge, (page.success_url, page.cancel_url))

    def open_invoice_page(self, call: Call, wanted: OpenInvoicePage) -> Outcome:
        """Open the page on which the owner pays what is due of an invoice now. A page over the same amount that is open
        already is the same page; any other is closed, so that nothing is paid twice.
        """
        for other in self._open_pages(call.claim.tenant_id):
            with unit_of_work(self._queues.engine) as session:
                due = what_is_due(session, wanted.invoice_id, on_page=True)
            if other.covers == due and other.page is not None and (page := self._account.page(other.page)).url:
                return opened(page)
            self._close(other)
        charge = self._decided(call, wanted.invoice_id, None, on_page=True)
        if charge is None:
            return Outcome(result={"due": False}, failure="nothing is due that can be paid on a page")
        with unit_of_work(self._queues.engine) as session:
            address = dunning.pay_address(session, wanted.invoice_id, self._queues.settings)
        return self._open(call, charge, (address, f"{address}?left=true"))

    def _open(self, call: Call, charge: PaymentCharge, urls: tuple[str, str]) -> Outcome:
        customer, description = call.customer, self._description(charge)
        page_id = call.once(
            lambda key: self._account.open_payment_page(
                customer,
                our_id=charge.id,
                amount_cents=charge.amount_cents,
                currency=CURRENCY,
                description=description,
                urls=urls,
                key=key,
            ),
            lambda since, until: self._account.find_page(
                our_id=charge.id, customer_id=customer, since=since, until=until
            ),
        )
        page = self._account.page(page_id)

        def keep(session: Session) -> None:
            row = _charge(session, charge.id)
            row.page = page_id
            session.add(row)
            if page.status == "expired":
                end_charge(session, charge.id, page_is_gone(page))

        return opened(page, keep)

    def _charge(self, call: Call, charge: PaymentCharge) -> Outcome:
        """One attempt with the charge's card."""
        if charge.method is None:
            return self._failed(call, charge, "no_method", "there is no payment method")
        customer, card, description = call.customer, charge.method, self._description(charge)
        try:
            made = call.once(
                lambda key: self._account.charge_saved_card(
                    customer,
                    card,
                    our_id=charge.id,
                    amount_cents=charge.amount_cents,
                    currency=CURRENCY,
                    description=description,
                    key=key,
                ),
                lambda since, until: self._account.find_payment(
                    our_id=charge.id, customer_id=customer, since=since, until=until
                ),
            )
        except StripeCardDeclined as declined:
            how: Failure = "needs_owner" if declined.needs_owner else "hard" if declined.is_hard else "declined"
            return self._failed(call, charge, how, declined.message)
        payment = self._account.payment(made)
        if payment.status == "processing":
            raise StripeUnavailable(f"the payment {payment.id} is on its way")
        if payment.status == "requires_action":
            return self._failed(call, charge, "needs_owner", "the card's owner has to confirm the payment")
        if payment.status != "succeeded":
            return self._failed(call, charge, "declined", "the card was declined")

        def book(session: Session) -> None:
            book_payment(session, payment)

        return Outcome(result={"payment_intent": payment.id, "charge": charge.id}, effect=book)

    def _failed(self, call: Call, charge: PaymentCharge, how: Failure, reason: str) -> Outcome:
        """The attempt failed. A card that was saved during it is tried at once: its event found no case to wake."""
        retries_now = charge.invoice_id is not None and self._card_of(call) not in (None, charge.method)

        def book(session: Session) -> None:
            end_charge(session, charge.id, reason, needs_owner=how in ("needs_owner", "no_method"))
            if charge.invoice_id is not None:
                queues = self._queues
                dunning.attempt_failed(
                    session, charge, how, reason, queues.settings, queues.clock, retries_now=retries_now
                )

        return Outcome(result={"charge": charge.id, "how": how}, effect=book, failure=reason)

    def _nothing_due(self, invoice_id: str) -> Outcome:
        """Nothing is due, or less than Stripe charges, which waits for the tenant's next invoice."""
        return Outcome(
            result={"skipped": "nothing is due, or less than can be charged"},
            effect=lambda session: dunning.end(session, invoice_id),
        )

    def _decided(self, call: Call, invoice_id: str, card: str | None, *, on_page: bool = False) -> PaymentCharge | None:
        """The operation's charge, written by its first attempt. None if there is nothing to charge."""

        def choose(session: Session) -> str | None:
            covers = what_is_due(session, invoice_id, on_page=on_page)
            if not covers:
                return None
            charge = PaymentCharge(
                id=new_id("chg"),
                tenant_id=call.claim.tenant_id,
                invoice_id=invoice_id,
                covers=covers,
                amount_cents=sum(covers.values()),
                on_page=on_page,
                method=card,
                created_at=database_now(session),
            )
            session.add(charge)
            session.flush()
            return charge.id

        charge_id = call.decide(choose)
        if charge_id is None:
            return None
        with unit_of_work(self._queues.engine) as session:
            return _charge(session, charge_id)

    def _is_too_much(self, charge: PaymentCharge) -> bool:
        """Whether less is due than when the charge was decided."""
        with unit_of_work(self._queues.engine) as session:
            now = {each: read_invoice(session, each) for each in charge.covers}
        return any(now[each].status != "open" or now[each].amount_due_cents < charge.covers[each] for each in now)

    def _is_at_stripe(self, call: Call, charge: PaymentCharge) -> bool:
        """Looks the charge's payment up at Stripe. Raises StripeLookupInconclusive unless the answer is certain."""
        since, until = call.window()
        found = self._account.find_payment(our_id=charge.id, customer_id=call.customer, since=since, until=until)
        return found is not None

    def _open_pages(self, tenant_id: str) -> list[PaymentCharge]:
        """The charges of invoices that the owner may pay at this moment."""
        with unit_of_work(self._queues.engine) as session:
            wanted = select(PaymentCharge).where(
                PaymentCharge.tenant_id == tenant_id,
                PaymentCharge.state == "pending",
                col(PaymentCharge.invoice_id).is_not(None),
                col(PaymentCharge.page).is_not(None),
            )
            return list(session.exec(wanted.order_by(col(PaymentCharge.id))))

    def _close(self, charge: PaymentCharge) -> None:
        """Let a page take no payment any more, and book the one that it took."""
        assert charge.page is not None, "an open page"
        page = self._account.page(charge.page)
        if page.status == "open":
            try:
                page = self._account.close_page(charge.page, key=f"close:{charge.id}:{secrets.token_hex(8)}")
            except StripeRefused:  # the owner paid at the same moment
                page = self._account.page(charge.page)
                if page.status == "open":
                    raise
        payment = None if page.payment_intent is None else self._account.payment(page.payment_intent)
        with unit_of_work(self._queues.engine) as session:
            if payment is not None:
                book_payment(session, payment)
            if page.status == "expired":
                end_charge(session, charge.id, page_is_gone(page))

    def _card_of(self, call: Call) -> str | None:
        """The tenant's default card. A customer that was deleted at Stripe is for an admin; nothing is created in its
        place.
        """
        customer = self._account.customer(call.customer)
        if customer.deleted:
            raise QueueStops("customer_deleted", f"the customer {call.customer} was deleted at Stripe")
        return customer.default_payment_method

    def _require_recent(self, claim: Claim, collect: CollectInvoice) -> None:
        """An invoice whose first attempt waited for long was perhaps paid in another way, so an admin has to decide."""
        with unit_of_work(self._queues.engine) as session:
            age = self._queues.clock(session) - claim.waits_since
        longest = timedelta(seconds=self._queues.settings.payments_collect_age_s_max)
        if collect.attempt == 1 and age > longest and not claim.approved:
            raise QueueStops("collection_old", f"the invoice waited for {age.days} days. Resume to collect, or cancel.")

    def _description(self, charge: PaymentCharge) -> str:
        if not charge.covers:
            return _CREDIT
        with unit_of_work(self._queues.engine) as session:
            numbers = sorted(read_invoice(session, each).number for each in charge.covers)
        return f"Invoice {', '.join(numbers)}"[:DESCRIPTION_LENGTH_MAX]


def what_is_due(session: Session, invoice_id: str, *, on_page: bool = False) -> dict[str, int]:
    """The cents that an attempt asks for, by invoice: what is due of this one, and of the tenant's others that are
    under the minimum charge. Empty if all together are under it, too. A card pays nothing that is paid by transfer. An
    owner may also pay what was written off.
    """
    invoice, state = lock_invoice(session, invoice_id)
    statuses = ("open", "uncollectible") if on_page else ("open",)
    if state.status not in statuses or state.amount_due_cents <= 0:
        return {}
    open_ones = list_invoices(session, tenant_id=invoice.tenant_id, status="open", limit=INVOICES_PAGE_MAX)
    left_out = set() if on_page else dunning.awaited_transfers(session, invoice.tenant_id)
    small = {
        each.id: each.amount_due_cents
        for each in open_ones
        if 0 < each.amount_due_cents < MINIMUM_CHARGE_CENTS and each.id not in left_out
    }
    covers = small | {invoice_id: state.amount_due_cents}
    return covers if sum(covers.values()) >= MINIMUM_CHARGE_CENTS else {}


def _charge(session: Session, charge_id: str) -> PaymentCharge:
    charge = session.get(PaymentCharge, charge_id)
    assert charge is not None, "written with its operation"
    return charge


def opened(page: StripePage, effect: Effect | None = None) -> Outcome:
    """The outcome of an operation that opened a page, or came too late."""
    if page.url is None:
        return Outcome(result={"page": page.id}, failure=page_is_gone(page), effect=effect)
    return Outcome(result={"page": page.id, "url": page.url}, effect=effect)


def page_is_gone(page: StripePage) -> str:
    """Why a page cannot be used."""
    return f"the page is {page.status} already; ask for another"
