"""What the web process knows of Stripe, the page that an unpaid invoice's address shows, and the suspensions that
dunning asks for. ``billing.payments`` does the rest.
"""

import time
from typing import NamedTuple

from sqlalchemy import Engine
from sqlmodel import Session

from billing.payments import outbox, queries, standings
from billing.payments.settings import WebhookSettings
from billing.payments.views import PaymentPageView
from billing.stripe.objects import StripeEvent
from billing.stripe.settings import StripeSettings
from control_plane.change_handlers import ChangeHandlers
from control_plane.tenants import service as tenants
from control_plane.tenants.schemas import TenantPatch
from core.db import unit_of_work
from core.errors import Conflict

_POLL_S = 0.05
_STANDINGS_MAX = 100  # in one round of the worker
_ACTOR = "dunning"


class PaymentAccess:
    """What the web process knows of Stripe: whether it is set up, whether it is simulated, and who signs webhooks. It
    calls nothing at Stripe and needs no key.
    """

    def __init__(self, stripe: StripeSettings, settings: WebhookSettings) -> None:
        self._stripe = stripe
        self._wait_s = settings.payments_page_wait_ms / 1000
        self.simulated = stripe.stripe_api_base is not None
        self.live = stripe.livemode

    def require(self) -> None:
        """Raises Conflict where Stripe is not set up."""
        if not self._stripe.set_up:
            raise Conflict(
                "This installation takes no payments. Its operator must set TENORA_STRIPE_WEBHOOK_SECRET here, and "
                "TENORA_STRIPE_API_KEY for the billing worker.",
                code="payments_not_set_up",
            )

    def event_of(self, body: bytes, signature: str | None) -> StripeEvent:
        """The event of a webhook. Raises Conflict where Stripe is not set up, and InvalidRequest."""
        from billing.stripe.client import event_from_webhook  # late: Stripe's SDK, which few requests need

        self.require()
        return event_from_webhook(self._stripe, body, signature)

    def wait_for_page(self, engine: Engine, *, tenant_id: str, page_id: str) -> PaymentPageView:
        """The page, once the billing worker has opened it, or as it is after the longest wait."""
        deadline = time.monotonic() + self._wait_s
        while True:
            with unit_of_work(engine) as session:
                page = queries.get_page(session, tenant_id=tenant_id, page_id=page_id, simulated=self.simulated)
            if page.state != "pending" or time.monotonic() >= deadline:
                return page
            time.sleep(_POLL_S)


class PayPage(NamedTuple):
    """What the address of an unpaid invoice shows: a page of Stripe's at ``url``, or a sentence."""

    status: int
    text: str = ""
    url: str | None = None


def pay_page(engine: Engine, access: PaymentAccess, token: str) -> PayPage:
    """Open a page of Stripe's over what is due of an invoice now, for its owner, whom the token lets in. Raises
    Conflict where Stripe is not set up.
    """
    access.require()
    with unit_of_work(engine) as session:
        invoice = queries.invoice_to_pay(session, token)
        if invoice is None:
            return PayPage(404, "This address belongs to no invoice. Use the whole address of the mail.")
        if invoice.status not in ("open", "uncollectible"):
            return PayPage(200, f"Nothing is due of invoice {invoice.number}.")
        page_id = outbox.page_of_invoice(session, invoice.tenant_id, invoice.id)
    page = access.wait_for_page(engine, tenant_id=invoice.tenant_id, page_id=page_id)
    if page.url is not None:
        return PayPage(303, url=page.url)
    if page.state == "pending":
        return PayPage(202, f"The payment of invoice {invoice.number} is being prepared. This page tries again.")
    with unit_of_work(engine) as session:
        after = queries.invoice_to_pay(session, token)
    if after is None or not after.amount_due_cents:
        return PayPage(200, f"Nothing is due of invoice {invoice.number}.")
    return PayPage(
        200,
        f"Invoice {invoice.number} cannot be paid here now: {page.failure}. An amount that is too small to be charged "
        "is part of the next payment.",
    )


class StandingChanges:
    """The worker's loop that suspends and restores tenants as dunning has decided."""

    def __init__(self, engine: Engine, handlers: ChangeHandlers) -> None:
        self._engine = engine
        self._handlers = handlers

    def run_once(self) -> bool:
        """Apply what waits. A tenant that an admin has suspended stays so. Returns whether there may be more."""
        with unit_of_work(self._engine) as session:
            changes = standings.waiting(session, _STANDINGS_MAX)
            for change in changes:
                self._apply(session, change)
        return len(changes) == _STANDINGS_MAX

    def _apply(self, session: Session, change: standings.StandingChange) -> None:
        status = tenants.lock(session, change.tenant_id).status
        wanted: tenants.Status = "suspended" if change.standing == "suspended" else "active"
        acts = status == "active" if wanted == "suspended" else change.ours and status == "suspended"
        if acts:
            tenants.change(session, change.tenant_id, TenantPatch(status=wanted), actor=_ACTOR)
            self._handlers.on_status_set(session, change.tenant_id, wanted)
            self._handlers.on_limits_changed(session, [change.tenant_id])
        # A further overdue invoice finds the tenant suspended by the first one: the suspension stays ours.
        standings.mark_applied(session, change.tenant_id, ours=wanted == "suspended" and (acts or change.ours))
