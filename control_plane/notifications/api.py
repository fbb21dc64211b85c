"""A tenant's routes over its notification endpoints and what was delivered to them. Reading takes the scope
billing:read, because alerts speak of money; changing takes notifications:write.
"""

from functools import partial
from typing import Annotated

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy import Engine
from sqlmodel import Session

from billing.notifications import endpoints, replays
from billing.notifications.addresses import shown_address
from billing.notifications.views import DeliveryState, DeliveryView, EndpointSecret, EndpointView, QueuedAgain
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.notifications.rules import NotificationRules
from control_plane.notifications.schemas import Confirmation, EndpointPatch, NewEndpoint, ReplaySince
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.tenants import service as tenants
from core.db import unit_of_work

_READ = {"scope": "billing:read", "while_suspended": True}
_WRITE = {"scope": "notifications:write", "while_suspended": True}

OfEndpoint = Annotated[str | None, QueryParameter(max_length=64, description="Only deliveries to this endpoint.")]
InState = Annotated[DeliveryState | None, QueryParameter(description="Only deliveries in this state.")]


class NotificationEndpoints(Controller):
    """Where the calling tenant gets alerts: e-mail addresses and webhooks."""

    path = "/notification-endpoints"
    tags = ("notifications",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_notification_endpoint(
        self,
        data: JSONBody[NewEndpoint],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        notification_rules: NamedDependency[NotificationRules],
    ) -> Response[EndpointSecret]:
        """Register an endpoint. A webhook is active at once, and only this response contains its signing secret; a
        replay for an Idempotency-Key has `secret: null`. An e-mail address gets a message with a code, and is active
        once it is confirmed.
        """
        tenant_id = principal.own_tenant_id
        notification_rules.check(data.kind, data.address, tenant_id=tenant_id)

        def create(session: Session) -> EndpointSecret:
            tenants.lock(session, tenant_id)
            created = endpoints.create(
                session,
                notification_rules.box,
                tenant_id=tenant_id,
                endpoints_max=notification_rules.settings.notifications_endpoints_max,
                **msgspec.structs.asdict(data),
            )
            if data.kind == "email":
                _request_message(session, notification_rules, tenant_id, created.id)
            details = {
                "kind": data.kind,
                "address": shown_address(data.kind, data.address),
                "event_types": created.event_types,
            }
            audited(session, principal, "notification_endpoint.created", created.id, details=details)
            return created

        return idempotent.run(create, stored=endpoints.without_secret)

    @get(sync_to_thread=True, opt=_READ)
    def list_notification_endpoints(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[EndpointView]:
        """List the tenant's endpoints, newest first."""
        with unit_of_work(engine) as session:
            read = partial(endpoints.list_endpoints, session, tenant_id=principal.own_tenant_id)
            return page_from(read, cursor=cursor, limit=limit)

    @get("/{endpoint_id:str}", sync_to_thread=True, opt=_READ)
    def get_notification_endpoint(
        self, endpoint_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> EndpointView:
        """Get one endpoint."""
        with unit_of_work(engine) as session:
            return endpoints.get(session, tenant_id=principal.own_tenant_id, endpoint_id=endpoint_id)

    @patch("/{endpoint_id:str}", sync_to_thread=True, opt=_WRITE)
    def change_notification_endpoint(
        self,
        endpoint_id: FromPath[str],
        data: JSONBody[EndpointPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        notification_rules: NamedDependency[NotificationRules],
    ) -> EndpointView:
        """Change the event types, disable an endpoint, or make a disabled one active again. Omitted fields keep their
        value. Messages that wait for an endpoint when it is disabled are not sent; replay them later.
        """
        if data.status == "active":
            with unit_of_work(engine) as session:
                found = endpoints.get(session, tenant_id=principal.own_tenant_id, endpoint_id=endpoint_id)
            notification_rules.check(found.kind, found.address, tenant_id=principal.own_tenant_id)
        with unit_of_work(engine) as session:
            changed = endpoints.change(
                session,
                tenant_id=principal.own_tenant_id,
                endpoint_id=endpoint_id,
                event_types=None if data.event_types is msgspec.UNSET else data.event_types,
                status=None if data.status is msgspec.UNSET else data.status,
            )
            details = {"status": changed.status, "event_types": changed.event_types}
            audited(session, principal, "notification_endpoint.changed", endpoint_id, details=details)
            return changed

    @delete("/{endpoint_id:str}", sync_to_thread=True, opt=_WRITE)
    def delete_notification_endpoint(
        self, endpoint_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Delete an endpoint. Messages that wait for it are not sent."""
        with unit_of_work(engine) as session:
            endpoints.delete(session, tenant_id=principal.own_tenant_id, endpoint_id=endpoint_id)
            audited(session, principal, "notification_endpoint.deleted", endpoint_id)

    @post("/{endpoint_id:str}/confirm", sync_to_thread=True, status_code=200, opt=_WRITE)
    def confirm_notification_endpoint(
        self,
        endpoint_id: FromPath[str],
        data: JSONBody[Confirmation],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        notification_rules: NamedDependency[NotificationRules],
    ) -> Response[EndpointView]:
        """Confirm an e-mail address with the code that was sent to it."""

        def confirm(session: Session) -> EndpointView:
            confirmed = endpoints.confirm(
                session,
                notification_rules.box,
                tenant_id=principal.own_tenant_id,
                endpoint_id=endpoint_id,
                code=data.code,
            )
            audited(session, principal, "notification_endpoint.confirmed", endpoint_id)
            return confirmed

        return idempotent.run(confirm, status_code=200)

    @post("/{endpoint_id:str}/rotate-secret", sync_to_thread=True, status_code=200, opt=_WRITE)
    def rotate_notification_secret(
        self,
        endpoint_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        notification_rules: NamedDependency[NotificationRules],
    ) -> Response[EndpointSecret]:
        """Give a webhook a new signing secret, which only this response contains. Until `previous_secret_until`,
        messages have a signature with the old secret too.
        """

        def rotate(session: Session) -> EndpointSecret:
            rotated = endpoints.rotate_secret(
                session,
                notification_rules.box,
                tenant_id=principal.own_tenant_id,
                endpoint_id=endpoint_id,
                overlap_s=notification_rules.settings.notifications_secret_overlap_s,
            )
            audited(session, principal, "notification_endpoint.secret_rotated", endpoint_id)
            return rotated

        return idempotent.run(rotate, status_code=200, stored=endpoints.without_secret)

    @post("/{endpoint_id:str}/messages", sync_to_thread=True, opt=_WRITE)
    def send_notification_message(
        self,
        endpoint_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        notification_rules: NamedDependency[NotificationRules],
    ) -> Response[DeliveryView]:
        """Send a test message to an endpoint, or the code once more to an e-mail address that is not confirmed."""

        def send(session: Session) -> DeliveryView:
            tenants.lock(session, principal.own_tenant_id)
            delivery = _request_message(session, notification_rules, principal.own_tenant_id, endpoint_id)
            details = {"event_type": delivery.event_type}
            audited(session, principal, "notification_endpoint.message_requested", endpoint_id, details=details)
            return delivery

        return idempotent.run(send)

    @post("/{endpoint_id:str}/replay", sync_to_thread=True, status_code=200, opt=_WRITE)
    def replay_missed_notifications(
        self,
        endpoint_id: FromPath[str],
        data: JSONBody[ReplaySince],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[QueuedAgain]:
        """Send every message since an instant again that the endpoint did not get, the oldest first. One call queues at
        most 1,000; `more` says whether to call again.
        """

        def replay(session: Session) -> QueuedAgain:
            queued = replays.replay_missed(
                session, tenant_id=principal.own_tenant_id, endpoint_id=endpoint_id, since=data.since
            )
            details = {"since": data.since.isoformat(), "queued": queued.queued}
            audited(session, principal, "notification_endpoint.messages_replayed", endpoint_id, details=details)
            return queued

        return idempotent.run(replay, status_code=200)


class NotificationDeliveries(Controller):
    """What was sent to the endpoints of the calling tenant."""

    path = "/notification-deliveries"
    tags = ("notifications",)

    @get(sync_to_thread=True, opt=_READ)
    def list_notification_deliveries(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        endpoint_id: OfEndpoint = None,
        delivery_state: InState = None,
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[DeliveryView]:
        """List the tenant's deliveries, newest first."""
        with unit_of_work(engine) as session:
            read = partial(
                replays.list_deliveries,
                session,
                tenant_id=principal.own_tenant_id,
                endpoint_id=endpoint_id,
                state=delivery_state,
            )
            return page_from(read, cursor=cursor, limit=limit)

    @get("/{delivery_id:str}", sync_to_thread=True, opt=_READ)
    def get_notification_delivery(
        self, delivery_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> DeliveryView:
        """Get one delivery."""
        with unit_of_work(engine) as session:
            return replays.get_delivery(session, tenant_id=principal.own_tenant_id, delivery_id=delivery_id)

    @post("/{delivery_id:str}/replay", sync_to_thread=True, status_code=200, opt=_WRITE)
    def replay_notification(
        self,
        delivery_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DeliveryView]:
        """Send one message again, with the id of the first attempt. Its endpoint must be active."""

        def replay(session: Session) -> DeliveryView:
            queued = replays.replay(session, tenant_id=principal.own_tenant_id, delivery_id=delivery_id)
            details = {"delivery": delivery_id}
            audited(session, principal, "notification_endpoint.message_replayed", queued.endpoint_id, details=details)
            return queued

        return idempotent.run(replay, status_code=200)


def _request_message(session: Session, rules: NotificationRules, tenant_id: str, endpoint_id: str) -> DeliveryView:
    notification_id = endpoints.request_message(
        session,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        per_hour_max=rules.settings.notifications_messages_per_hour_max,
    )
    (delivery,) = replays.list_deliveries(
        session, tenant_id=tenant_id, endpoint_id=endpoint_id, notification_id=notification_id, limit=1
    )
    return delivery
