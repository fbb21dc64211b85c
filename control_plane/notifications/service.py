"""What a tenant does with its notification endpoints. ``billing.notifications`` does the work; this room looks hosts up
before the transaction, locks the tenant, and adds audit rows and paging.
"""

from datetime import datetime
from typing import TypeVar

import msgspec
from sqlmodel import Session

from billing.notifications import endpoints, replays
from billing.notifications.addresses import HostLookup, parse_webhook, shown_address
from billing.notifications.settings import NotificationSettings
from billing.notifications.signing_secrets import SecretBox
from billing.notifications.views import DeliveryState, DeliveryView, EndpointSecret, EndpointView, QueuedAgain
from control_plane.audit import service as audit
from control_plane.notifications.schemas import EndpointPatch, NewEndpoint
from control_plane.paging import Page, decode_cursor, encode_cursor
from control_plane.tenants import service as tenants
from core.errors import Unprocessable

T = TypeVar("T", EndpointView, DeliveryView)


class NotificationRules:
    """What this installation allows endpoints to be. One for each web process."""

    def __init__(self, settings: NotificationSettings, hosts: HostLookup | None = None) -> None:
        self.settings = settings
        self.box = SecretBox(settings.notification_keys)
        self._hosts = hosts or HostLookup(
            allow_loopback=settings.notifications_allow_loopback, timeout_ms=settings.notifications_resolve_ms
        )

    def check(self, kind: str, address: str, *, tenant_id: str) -> None:
        """Look a webhook's host up, outside of any transaction. Raises Unprocessable where this installation cannot
        deliver, and what ``addresses`` raises for an address that is not allowed.
        """
        if not self.box.usable:
            raise Unprocessable(
                "This installation sends no notifications. Its operator must set TENORA_NOTIFICATIONS_KEY.",
                code="notifications_not_set_up",
            )
        if kind == "webhook":
            allow_loopback = self.settings.notifications_allow_loopback
            self._hosts.addresses(parse_webhook(address, allow_loopback=allow_loopback), tenant_id=tenant_id)
        elif self.settings.notifications_email_from is None:
            raise Unprocessable(
                "kind: this installation sends no e-mail. Use a webhook, or ask its operator to set "
                "TENORA_NOTIFICATIONS_EMAIL_FROM.",
                code="notifications_not_set_up",
                param="kind",
            )

    def close(self) -> None:
        """Accept no further lookups."""
        self._hosts.close()


def create(
    session: Session, rules: NotificationRules, data: NewEndpoint, *, tenant_id: str, actor: str
) -> EndpointSecret:
    """Register an endpoint that ``NotificationRules.check`` has allowed, and send the code to an e-mail address."""
    tenants.lock(session, tenant_id)
    created = endpoints.create(
        session,
        rules.box,
        tenant_id=tenant_id,
        kind=data.kind,
        address=data.address,
        event_types=data.event_types,
        endpoints_max=rules.settings.notifications_endpoints_max,
    )
    if data.kind == "email":
        _request_message(session, rules, tenant_id=tenant_id, endpoint_id=created.id)
    details = {
        "kind": data.kind,
        "address": shown_address(data.kind, data.address),
        "event_types": list(created.event_types),
    }
    _audit(session, "created", created.id, tenant_id=tenant_id, actor=actor, **details)
    return created


def list_endpoints(session: Session, *, tenant_id: str, cursor: str | None, limit: int) -> Page[EndpointView]:
    """The tenant's endpoints, newest first."""
    found = endpoints.list_endpoints(session, tenant_id=tenant_id, after=decode_cursor(cursor), limit=limit + 1)
    return _page(found, limit)


def change(session: Session, data: EndpointPatch, *, tenant_id: str, endpoint_id: str, actor: str) -> EndpointView:
    """Change an endpoint's types or status."""
    changed = endpoints.change(
        session,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        event_types=None if data.event_types is msgspec.UNSET else data.event_types,
        status=None if data.status is msgspec.UNSET else data.status,
    )
    details = {"status": changed.status, "event_types": list(changed.event_types)}
    _audit(session, "changed", endpoint_id, tenant_id=tenant_id, actor=actor, **details)
    return changed


def delete(session: Session, *, tenant_id: str, endpoint_id: str, actor: str) -> None:
    """Delete an endpoint."""
    endpoints.delete(session, tenant_id=tenant_id, endpoint_id=endpoint_id)
    _audit(session, "deleted", endpoint_id, tenant_id=tenant_id, actor=actor)


def rotate_secret(
    session: Session, rules: NotificationRules, *, tenant_id: str, endpoint_id: str, actor: str
) -> EndpointSecret:
    """Give a webhook a new signing secret."""
    rotated = endpoints.rotate_secret(
        session,
        rules.box,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        overlap_s=rules.settings.notifications_secret_overlap_s,
    )
    _audit(session, "secret_rotated", endpoint_id, tenant_id=tenant_id, actor=actor)
    return rotated


def confirm(
    session: Session, rules: NotificationRules, *, tenant_id: str, endpoint_id: str, code: str, actor: str
) -> EndpointView:
    """Make an e-mail address active."""
    confirmed = endpoints.confirm(session, rules.box, tenant_id=tenant_id, endpoint_id=endpoint_id, code=code)
    _audit(session, "confirmed", endpoint_id, tenant_id=tenant_id, actor=actor)
    return confirmed


def send_message(
    session: Session, rules: NotificationRules, *, tenant_id: str, endpoint_id: str, actor: str
) -> DeliveryView:
    """Queue a test message, or the confirmation code again."""
    tenants.lock(session, tenant_id)
    delivery = _request_message(session, rules, tenant_id=tenant_id, endpoint_id=endpoint_id)
    _audit(session, "message_requested", endpoint_id, tenant_id=tenant_id, actor=actor, event_type=delivery.event_type)
    return delivery


def list_deliveries(
    session: Session,
    *,
    tenant_id: str,
    endpoint_id: str | None,
    state: DeliveryState | None,
    cursor: str | None,
    limit: int,
) -> Page[DeliveryView]:
    """The tenant's deliveries, newest first."""
    found = replays.list_deliveries(
        session,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        state=state,
        after=decode_cursor(cursor),
        limit=limit + 1,
    )
    return _page(found, limit)


def replay(session: Session, *, tenant_id: str, delivery_id: str, actor: str) -> DeliveryView:
    """Send one message again."""
    queued = replays.replay(session, tenant_id=tenant_id, delivery_id=delivery_id)
    _audit(session, "message_replayed", queued.endpoint_id, tenant_id=tenant_id, actor=actor, delivery=delivery_id)
    return queued


def replay_missed(session: Session, *, tenant_id: str, endpoint_id: str, since: datetime, actor: str) -> QueuedAgain:
    """Send all messages again that an endpoint has missed."""
    queued = replays.replay_missed(session, tenant_id=tenant_id, endpoint_id=endpoint_id, since=since)
    details = {"since": since.isoformat(), "queued": queued.queued}
    _audit(session, "messages_replayed", endpoint_id, tenant_id=tenant_id, actor=actor, **details)
    return queued


def _request_message(session: Session, rules: NotificationRules, *, tenant_id: str, endpoint_id: str) -> DeliveryView:
    notification_id = endpoints.request_message(
        session,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        per_hour_max=rules.settings.notifications_messages_per_hour_max,
    )
    (delivery,) = replays.list_deliveries(
        session,
        tenant_id=tenant_id,
        endpoint_id=endpoint_id,
        notification_id=notification_id,
        state=None,
        after=None,
        limit=1,
    )
    return delivery


def _page(found: list[T], limit: int) -> Page[T]:
    following = encode_cursor(found[limit - 1].id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)


def _audit(session: Session, verb: str, endpoint_id: str, *, tenant_id: str, actor: str, **details: object) -> None:
    audit.record(
        session,
        actor=actor,
        action=f"notification_endpoint.{verb}",
        target=endpoint_id,
        tenant_id=tenant_id,
        details=dict(details),
    )
