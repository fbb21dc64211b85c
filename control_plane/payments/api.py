"""Routes of payments: a tenant's pages at Stripe and top-ups, what admins see of queues, events and alarms, and the
webhooks of Stripe.
"""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, MediaType, Response, get, post, put
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.status_codes import HTTP_202_ACCEPTED
from sqlalchemy import Engine
from sqlmodel import Session

from billing.payments import event_store, outbox, queries, queue
from billing.payments.operations import OpenPortal, OpenSetupPage, OpenTopUpPage
from billing.payments.views import (
    EventState,
    PaymentAlarmView,
    PaymentOperationView,
    PaymentPageView,
    PaymentQueueView,
    StripeEventView,
    TopUpView,
)
from control_plane import tenant_scope
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.payments.schemas import EventReceived, NewPaymentQueue, NewPortal, NewSetup, NewTopUp, QueueDecision
from control_plane.payments.service import PaymentAccess, PayPage, pay_page
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest
from core.ids import new_id

_PAGE_AGAIN_S = 3
_READ = {"scope": "billing:read", "while_suspended": True}
_WRITE = {"scope": "billing:write", "while_suspended": True}  # a suspended tenant must be able to pay

InState = Annotated[EventState | None, QueryParameter(description="Only events in this state.")]
Stopped = Annotated[bool | None, QueryParameter(description="Only queues that have stopped, or that have not.")]


class OwnPayments(Controller):
    """How the calling tenant pays. Pages are Stripe's; Tenora never sees a card number."""

    path = "/billing"
    tags = ("payments",)

    @post("/setup", sync_to_thread=True, opt=_WRITE)
    def open_setup_page(
        self,
        data: JSONBody[NewSetup],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        payment_access: NamedDependency[PaymentAccess],
    ) -> Response[PaymentPageView]:
        """Open a page of Stripe's that saves a card for later payments. While the answer is 202, the page is not open
        yet: read it at `GET /api/v1/billing/pages/{id}`.
        """
        operation = OpenSetupPage(request_id=new_id("pop"), **msgspec.structs.asdict(data))
        return _opened(engine, idempotent, principal, payment_access, operation)

    @post("/portal", sync_to_thread=True, opt=_WRITE)
    def open_portal(
        self,
        data: JSONBody[NewPortal],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        payment_access: NamedDependency[PaymentAccess],
    ) -> Response[PaymentPageView]:
        """Open a page of Stripe's on which the owner manages cards. Its address works once and for minutes."""
        operation = OpenPortal(request_id=new_id("pop"), **msgspec.structs.asdict(data))
        return _opened(engine, idempotent, principal, payment_access, operation)

    @post("/top-ups", sync_to_thread=True, opt=_WRITE)
    def open_top_up_page(
        self,
        data: JSONBody[NewTopUp],
        engine: NamedDependency[Engine],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        payment_access: NamedDependency[PaymentAccess],
    ) -> Response[PaymentPageView]:
        """Open a page of Stripe's that sells credit. The credit is added once Stripe reports the payment."""
        operation = OpenTopUpPage(request_id=new_id("top"), **msgspec.structs.asdict(data))
        return _opened(engine, idempotent, principal, payment_access, operation)

    @get("/top-ups", sync_to_thread=True, opt=_READ)
    def list_top_ups(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[TopUpView]:
        """List the tenant's top-ups, newest first."""
        with unit_of_work(engine) as session:
            read = partial(queries.list_top_ups, session, tenant_id=principal.own_tenant_id)
            return page_from(read, cursor=cursor, limit=limit)

    @get("/pages/{page_id:str}", sync_to_thread=True, opt=_READ)
    def get_payment_page(
        self,
        page_id: FromPath[str],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        payment_access: NamedDependency[PaymentAccess],
    ) -> PaymentPageView:
        """Get a page that was asked for, with its address once it is open."""
        with unit_of_work(engine) as session:
            return queries.get_page(
                session, tenant_id=principal.own_tenant_id, page_id=page_id, simulated=payment_access.simulated
            )


class AdminPayments(Controller):
    """Payments of all tenants: what waits at Stripe, what came from it, and what needs a person."""

    path = "/payments"
    tags = ("admin: payments",)

    @get("/queues", sync_to_thread=True)
    def list_payment_queues(
        self,
        engine: NamedDependency[Engine],
        stopped: Stopped = None,
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[PaymentQueueView]:
        """List the queues of all tenants, the newest tenant first."""
        with unit_of_work(engine) as session:
            return page_from(partial(queries.list_queues, session, stopped=stopped), cursor=cursor, limit=limit)

    @put("/queues/{tenant_id:str}", sync_to_thread=True)
    def open_payment_queue(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewPaymentQueue],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        payment_access: NamedDependency[PaymentAccess],
    ) -> PaymentQueueView:
        """Create the tenant's customer at Stripe on a test clock, before its first payment. Only with a test key."""
        with unit_of_work(engine) as session:
            payment_access.require()
            if payment_access.live:
                raise InvalidRequest("test_clock: a live key has no test clocks; use a test key.", param="test_clock")
            tenant = tenants.get(session, tenant_id)
            queue = outbox.open_queue(session, tenant_id, name=tenant.name, test_clock=data.test_clock)
            if queue.test_clock != data.test_clock:
                raise Conflict(
                    "test_clock: the tenant has a customer at Stripe already, and its clock cannot change; use a new "
                    "tenant.",
                    code="payment_queue_exists",
                    param="test_clock",
                )
            audited(session, principal, "payment_queue.opened", tenant_id, tenant_id=tenant_id, details=data)
            session.flush()
            return queries.get_queue(session, tenant_id)

    @get("/queues/{tenant_id:str}/operations", sync_to_thread=True)
    def list_payment_operations(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[PaymentOperationView]:
        """List a tenant's operations at Stripe, newest first. They run one after the other, the oldest first."""
        with unit_of_work(engine) as session:
            read = partial(queries.list_operations, session, tenant_id=tenant_id)
            return page_from(read, cursor=cursor, limit=limit)

    @post("/queues/{tenant_id:str}/resume", sync_to_thread=True, status_code=200)
    def resume_payment_queue(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[QueueDecision],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[PaymentQueueView]:
        """Let a stopped queue go on. Its first operation is looked up at Stripe before anything is sent again, or with
        `cancel` it is given up.
        """

        def resume(session: Session) -> PaymentQueueView:
            queue.resume(session, tenant_id, cancel=data.cancel)
            action = "payment_queue.operation_cancelled" if data.cancel else "payment_queue.resumed"
            audited(session, principal, action, tenant_id, tenant_id=tenant_id)
            session.flush()
            return queries.get_queue(session, tenant_id)

        return idempotent.run(resume, status_code=200)

    @get("/alarms", sync_to_thread=True)
    def list_payment_alarms(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[PaymentAlarmView]:
        """List what somebody has to look at, newest first."""
        with unit_of_work(engine) as session:
            return page_from(partial(queries.list_alarms, session), cursor=cursor, limit=limit)

    @post("/alarms/{alarm_id:str}/seen", sync_to_thread=True, status_code=200)
    def mark_payment_alarm_seen(
        self,
        alarm_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[PaymentAlarmView]:
        """Note that somebody has looked at an alarm."""

        def mark(session: Session) -> PaymentAlarmView:
            seen = queries.mark_alarm_seen(session, alarm_id)
            audited(session, principal, "payment_alarm.seen", alarm_id, tenant_id=seen.tenant_id)
            return seen

        return idempotent.run(mark, status_code=200)

    @get("/events", sync_to_thread=True)
    def list_stripe_events(
        self,
        engine: NamedDependency[Engine],
        event_state: InState = None,
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[StripeEventView]:
        """List Stripe's events, the last to arrive first. `ignored` ones had no effect, and `note` says why."""
        with unit_of_work(engine) as session:
            return page_from(partial(queries.list_events, session, state=event_state), cursor=cursor, limit=limit)

    @post("/events/{event_id:str}/handle", sync_to_thread=True, status_code=200)
    def handle_stripe_event(
        self,
        event_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[StripeEventView]:
        """Handle an ignored or failed event again."""

        def handle(session: Session) -> StripeEventView:
            event_store.handle_again(session, event_id)
            audited(session, principal, "stripe_event.handled_again", event_id)
            session.flush()
            return queries.get_event(session, event_id)

        return idempotent.run(handle, status_code=200)


@get("/pay/{token:str}", sync_to_thread=True, include_in_schema=False)
def pay_invoice(
    token: FromPath[str],
    engine: NamedDependency[Engine],
    payment_access: NamedDependency[PaymentAccess],
    left: Annotated[bool, QueryParameter(description="Whether the owner comes back without having paid.")] = False,
) -> Response[str]:
    """Lead the owner of an unpaid invoice to a page of Stripe's over what is due now. The address is the secret."""
    with tenant_scope.every_tenant():  # the token is the caller's right, and no guard has found a tenant
        shown = (
            PayPage(200, "The invoice is not paid yet. You can pay it at this address, without what follows the ?.")
            if left
            else pay_page(engine, payment_access, token)
        )
    headers = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
    if shown.url is not None:
        headers["location"] = shown.url
    elif shown.status == HTTP_202_ACCEPTED:
        headers["refresh"] = str(_PAGE_AGAIN_S)
    return Response(shown.text, status_code=shown.status, media_type=MediaType.TEXT, headers=headers)


def stripe_webhook(body_bytes_max: int) -> HTTPRouteHandler:
    """The route that Stripe posts events to. It only stores them; the billing worker handles them."""

    @post(
        "/webhooks/stripe",
        sync_to_thread=True,
        status_code=200,
        request_max_body_size=body_bytes_max,
        include_in_schema=False,
    )
    def receive_stripe_event(
        raw_body: NamedDependency[bytes],
        engine: NamedDependency[Engine],
        payment_access: NamedDependency[PaymentAccess],
        stripe_signature: Annotated[str | None, HeaderParameter(name="Stripe-Signature")] = None,
    ) -> EventReceived:
        """Store an event whose signature is right. Fails closed: what is not stored is not accepted, and Stripe posts
        it again.
        """
        event = payment_access.event_of(raw_body, stripe_signature)
        with tenant_scope.every_tenant(), unit_of_work(engine) as session:
            return EventReceived(new=event_store.store(session, [event], source="webhook") == 1)

    return receive_stripe_event


def _opened(
    engine: Engine,
    idempotent: IdempotentRequest,
    principal: Principal,
    access: PaymentAccess,
    operation: OpenSetupPage | OpenPortal | OpenTopUpPage,
) -> Response[Any]:
    """The page, once it is open; 202 while it is not. A replay reads the page again."""
    tenant_id = principal.own_tenant_id

    def open_page(session: Session) -> PaymentPageView:
        access.require()
        outbox.open_queue(session, tenant_id, name=tenants.get(session, tenant_id).name)
        page_id = outbox.enqueue(session, tenant_id, operation)
        assert page_id is not None, "pages are always queued"
        details = {"amount_cents": operation.amount_cents} if isinstance(operation, OpenTopUpPage) else None
        audited(session, principal, "payment_page.opened", page_id, details=details)
        return queries.get_page(session, tenant_id=tenant_id, page_id=page_id, simulated=access.simulated)

    def stored_page(_session: Session, stored: bytes) -> PaymentPageView:
        return msgspec.json.decode(stored, type=PaymentPageView)

    asked = idempotent.run(open_page, replayed=stored_page)
    page = access.wait_for_page(engine, tenant_id=tenant_id, page_id=asked.content.id)
    status_code = 202 if page.state == "pending" else 201
    return Response(page, status_code=status_code, headers=dict(asked.headers))
