"""Customers, the pages of Stripe's on which an owner acts, and top-ups with the saved card."""

import secrets

import sqlalchemy as sa
from sqlmodel import Session, col

from billing.payments.books import Books
from billing.payments.models import PaymentQueue
from billing.payments.operations import (
    ChargeTopUp,
    CreateCustomer,
    OpenPortal,
    OpenSetupPage,
    OpenTopUpPage,
    Operation,
    top_up_of,
)
from billing.payments.outcomes import Outcome
from billing.payments.queue import Claim, Effect
from billing.payments.settlement import fail_top_up, settle_top_up
from billing.payments.steps import Steps
from billing.stripe_client import StripeAccount
from billing.stripe_errors import StripeCardDeclined
from billing.stripe_objects import StripePage, StripePayment

_CURRENCY = "usd"
_PRODUCT = "Tenora credit"
_NO_CARD = "none"


class Pages:
    """Performs the operations that lead the owner to Stripe, or act with what the owner saved there."""

    def __init__(self, account: StripeAccount, books: Books) -> None:
        self._account = account
        self._books = books

    def create_customer(self, steps: Steps, create: CreateCustomer) -> Outcome:
        """Create the tenant's customer, or find the one that a lost answer created."""
        customer_id = steps.once(
            "customer",
            lambda key: self._account.create_customer(
                our_id=create.tenant_id, name=create.name, email=create.email, test_clock=create.test_clock, key=key
            ),
            lambda since, until: self._account.find_customer(
                our_id=create.tenant_id, since=since, until=until, test_clock=create.test_clock
            ),
        )
        at = None if create.test_clock is None else self._account.clock_time(create.test_clock)

        def keep(session: Session) -> None:
            session.execute(
                sa.update(PaymentQueue)
                .where(col(PaymentQueue.tenant_id) == create.tenant_id)
                .values(customer_id=customer_id, clock_at=at)
            )

        return Outcome(result={"customer": customer_id}, effect=keep)

    def open_setup(self, claim: Claim, steps: Steps, page: OpenSetupPage) -> Outcome:
        """Open the page that saves a card."""
        customer = _customer(claim)
        page_id = steps.once(
            "page",
            lambda key: self._account.open_setup_page(
                customer,
                our_id=page.request_id,
                currency=_CURRENCY,
                success_url=page.success_url,
                cancel_url=page.cancel_url,
                key=key,
            ),
            lambda since, until: self._account.find_page(
                our_id=page.request_id, customer_id=customer, since=since, until=until
            ),
        )
        return _opened(self._account.page(page_id))

    def open_portal(self, claim: Claim, page: OpenPortal) -> Outcome:
        """Open the portal. Its address works once and for minutes, so each attempt may open another."""
        key = f"{claim.operation_id}:portal:{secrets.token_hex(8)}"
        return Outcome(result={"url": self._account.portal_url(_customer(claim), return_url=page.return_url, key=key)})

    def open_top_up(self, claim: Claim, steps: Steps, page: OpenTopUpPage) -> Outcome:
        """Open the page that takes one payment for credit."""
        customer = _customer(claim)
        page_id = steps.once(
            "page",
            lambda key: self._account.open_payment_page(
                customer,
                our_id=page.request_id,
                amount_cents=page.amount_cents,
                currency=_CURRENCY,
                description=_PRODUCT,
                urls=(page.success_url, page.cancel_url),
                key=key,
            ),
            lambda since, until: self._account.find_page(
                our_id=page.request_id, customer_id=customer, since=since, until=until
            ),
        )
        found = self._account.page(page_id)
        effect = top_up_ended(page, _gone(found)) if found.status == "expired" else None
        return _opened(found, effect)

    def charge_top_up(self, claim: Claim, steps: Steps, charge: ChargeTopUp) -> Outcome:
        """Buy credit with the saved card. Credit is added only once the payment has succeeded."""
        customer, top_up_id = _customer(claim), charge.top_up_id
        # Decided once: another card under the same key would be another request.
        card = steps.decide("card", lambda: self._account.customer(customer).default_payment_method or _NO_CARD)
        if card == _NO_CARD:
            return _failed(top_up_id, "there is no payment method", needs_owner=True)
        try:
            payment_id = steps.once(
                "charge",
                lambda key: self._account.charge_saved_card(
                    customer,
                    card,
                    our_id=top_up_id,
                    amount_cents=charge.amount_cents,
                    currency=_CURRENCY,
                    description=_PRODUCT,
                    key=key,
                ),
                lambda since, until: self._account.find_payment(
                    our_id=top_up_id, customer_id=customer, since=since, until=until
                ),
            )
        except StripeCardDeclined as declined:
            return _failed(top_up_id, declined.message, needs_owner=declined.needs_owner)
        payment = self._account.payment(payment_id)
        if payment.status in ("requires_payment_method", "canceled"):
            return _failed(top_up_id, "the card was declined", needs_owner=False)
        if payment.status == "requires_action":
            return _failed(top_up_id, "the card's owner has to confirm the payment", needs_owner=True)
        return Outcome(result={"payment_intent": payment.id, "status": payment.status}, effect=self._credited(payment))

    def _credited(self, payment: StripePayment) -> Effect:
        def effect(session: Session) -> None:
            settle_top_up(session, self._books, payment)

        return effect


def top_up_ended(operation: Operation, reason: str) -> Effect | None:
    """The effect of a refusal: a top-up that is not paid by this operation has failed. None for other operations."""
    top_up_id = top_up_of(operation)
    if top_up_id is None:
        return None
    return lambda session: fail_top_up(session, top_up_id, reason, needs_owner=False)


def _opened(page: StripePage, effect: Effect | None = None) -> Outcome:
    if page.url is None:
        return Outcome(result={"page": page.id}, failure=_gone(page), effect=effect)
    return Outcome(result={"page": page.id, "url": page.url})


def _gone(page: StripePage) -> str:
    return f"the page is {page.status} already; ask for another"


def _failed(top_up_id: str, reason: str, *, needs_owner: bool) -> Outcome:
    def effect(session: Session) -> None:
        fail_top_up(session, top_up_id, reason, needs_owner=needs_owner)

    return Outcome(result={"top_up": top_up_id}, effect=effect, failure=reason)


def _customer(claim: Claim) -> str:
    assert claim.customer_id is not None, "the first operation of a queue creates the customer"
    return claim.customer_id
