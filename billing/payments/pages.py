"""Customers at Stripe, and the pages on which an owner saves and manages cards. Pages that take money are in
``charging``.
"""

import secrets

import sqlalchemy as sa
from sqlmodel import Session, col

from billing.payments.calls import Call
from billing.payments.models import PaymentQueue
from billing.payments.operations import CreateCustomer, OpenPortal, OpenSetupPage
from billing.payments.queue import Claim, Effect, Outcome
from billing.stripe.client import StripeAccount
from billing.stripe.objects import StripePage

CURRENCY = "usd"


class Pages:
    """Performs the operations that lead the owner to Stripe and take no money."""

    def __init__(self, account: StripeAccount) -> None:
        self._account = account

    def create_customer(self, call: Call, create: CreateCustomer) -> Outcome:
        """Create the tenant's customer, or find the one that a lost answer created."""
        customer_id = call.once(
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

    def open_setup(self, claim: Claim, call: Call, page: OpenSetupPage) -> Outcome:
        """Open the page that saves a card."""
        customer = customer_of(claim)
        page_id = call.once(
            lambda key: self._account.open_setup_page(
                customer,
                our_id=page.request_id,
                currency=CURRENCY,
                success_url=page.success_url,
                cancel_url=page.cancel_url,
                key=key,
            ),
            lambda since, until: self._account.find_page(
                our_id=page.request_id, customer_id=customer, since=since, until=until
            ),
        )
        return opened(self._account.page(page_id))

    def open_portal(self, claim: Claim, page: OpenPortal) -> Outcome:
        """Open the portal. Its address works once and for minutes, so each attempt may open another."""
        key = f"{claim.operation_id}:portal:{secrets.token_hex(8)}"
        return Outcome(
            result={"url": self._account.portal_url(customer_of(claim), return_url=page.return_url, key=key)}
        )


def customer_of(claim: Claim) -> str:
    """The tenant's customer at Stripe."""
    assert claim.customer_id is not None, "the first operation of a queue creates the customer"
    return claim.customer_id


def opened(page: StripePage, effect: Effect | None = None) -> Outcome:
    """The outcome of an operation that opened a page, or came too late."""
    if page.url is None:
        return Outcome(result={"page": page.id}, failure=page_is_gone(page), effect=effect)
    return Outcome(result={"page": page.id, "url": page.url}, effect=effect)


def page_is_gone(page: StripePage) -> str:
    """Why a page cannot be used."""
    return f"the page is {page.status} already; ask for another"
