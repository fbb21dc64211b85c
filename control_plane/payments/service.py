"""What tenants and admins do with payments. ``billing.payments`` does the work; this room knows tenants, waits for
pages, writes audit rows, and applies suspensions that dunning asks for.
"""

import time
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Engine
from sqlmodel import Session

from billing.payments import event_store, outbox, queries, resuming, standings
from billing.payments.operations import OpenPortal, OpenSetupPage, OpenTopUpPage
from billing.payments.settings import WebhookSettings
from billing.payments.views import PaymentAlarmView, PaymentPageView, PaymentQueueView, StripeEventView
from billing.stripe.objects import StripeEvent
from billing.stripe.settings import StripeSettings
from control_plane.audit import service as audit
from control_plane.change_handlers import ChangeHandlers
from control_plane.paging import Page, encode_cursor
from control_plane.payments.schemas import NewPortal, NewSetup, NewTopUp
from control_plane.tenants import service as tenants
from control_plane.tenants.schemas import TenantPatch
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest
from core.ids import new_id

T = TypeVar("T", bound=Any)
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


def open_page(
    session: Session, access: PaymentAccess, data: NewSetup | NewPortal | NewTopUp, *, tenant_id: str, actor: str
) -> PaymentPageView:
    """Queue a page of Stripe's for the tenant's owner. Raises Conflict where Stripe is not set up."""
    access.require()
    tenant = tenants.get(session, tenant_id)
    outbox.open_queue(session, tenant_id, name=tenant.name)
    operation: OpenSetupPage | OpenPortal | OpenTopUpPage
    match data:
        case NewSetup():
            operation = OpenSetupPage(
                request_id=new_id("pop"), success_url=data.success_url, cancel_url=data.cancel_url
            )
        case NewPortal():
            operation = OpenPortal(request_id=new_id("pop"), return_url=data.return_url)
        case NewTopUp():
            operation = OpenTopUpPage(
                request_id=new_id("top"),
                amount_cents=data.amount_cents,
                success_url=data.success_url,
                cancel_url=data.cancel_url,
            )
    page_id = outbox.enqueue(session, tenant_id, operation)
    assert page_id is not None, "pages are always queued"
    details = {"amount_cents": data.amount_cents} if isinstance(data, NewTopUp) else {}
    audit.record(
        session, actor=actor, action="payment_page.opened", target=page_id, tenant_id=tenant_id, details=details
    )
    return queries.get_page(session, tenant_id=tenant_id, page_id=page_id, simulated=access.simulated)


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


def open_on_test_clock(
    session: Session, access: PaymentAccess, tenant_id: str, *, test_clock: str, actor: str
) -> PaymentQueueView:
    """Create the tenant's customer at Stripe on a test clock. Raises NotFound, InvalidRequest with a live key, and
    Conflict where Stripe is not set up and when the tenant has a customer already.
    """
    access.require()
    if access.live:
        raise InvalidRequest("test_clock: a live key has no test clocks; use a test key.", param="test_clock")
    tenant = tenants.get(session, tenant_id)
    if outbox.open_queue(session, tenant_id, name=tenant.name, test_clock=test_clock).test_clock != test_clock:
        raise Conflict(
            "test_clock: the tenant has a customer at Stripe already, and its clock cannot change; use a new tenant.",
            code="payment_queue_exists",
            param="test_clock",
        )
    details = {"test_clock": test_clock}
    audit.record(
        session, actor=actor, action="payment_queue.opened", target=tenant_id, tenant_id=tenant_id, details=details
    )
    session.flush()
    return queries.get_queue(session, tenant_id)


def stored_page(_session: Session, stored: bytes) -> PaymentPageView:
    """The page of an earlier request, as it was then."""
    return msgspec.json.decode(stored, type=PaymentPageView)


def store_event(engine: Engine, event: StripeEvent) -> bool:
    """Store a webhook's event. Returns whether it is new."""
    with unit_of_work(engine) as session:
        return event_store.store(session, [event], source="webhook") == 1


def resume_queue(session: Session, tenant_id: str, *, cancel: bool, actor: str) -> PaymentQueueView:
    """Let a stopped queue go on. Raises NotFound and Conflict."""
    resuming.resume(session, tenant_id, cancel=cancel)
    action = "payment_queue.operation_cancelled" if cancel else "payment_queue.resumed"
    audit.record(session, actor=actor, action=action, target=tenant_id, tenant_id=tenant_id, details={})
    session.flush()
    return queries.get_queue(session, tenant_id)


def mark_alarm_seen(session: Session, alarm_id: str, *, actor: str) -> PaymentAlarmView:
    """Note that an admin has looked at an alarm. Raises NotFound."""
    seen = queries.mark_alarm_seen(session, alarm_id)
    audit.record(session, actor=actor, action="payment_alarm.seen", target=alarm_id, tenant_id=seen.tenant_id)
    return seen


def handle_again(session: Session, event_id: str, *, actor: str) -> StripeEventView:
    """Handle an ignored or failed event again. Raises NotFound and Conflict."""
    event_store.handle_again(session, event_id)
    audit.record(session, actor=actor, action="stripe_event.handled_again", target=event_id, details={})
    session.flush()
    return queries.get_event(session, event_id)


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


def page_of(found: list[T], limit: int) -> Page[T]:
    """A page of a list that was read with one item more."""
    following = encode_cursor(found[limit - 1].id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)
