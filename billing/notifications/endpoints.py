"""A tenant's endpoints: registered, confirmed, changed, rotated and deleted, in the caller's transaction. It opens no
connection: the caller has looked a webhook's host up before.

An e-mail address gets nothing but its confirmation code until its reader has sent the code back, so that no tenant can
send mail to strangers.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from billing.notifications.delivery_queue import fail_pending
from billing.notifications.event_types import ENDPOINT_CONFIRMATION, ENDPOINT_TEST
from billing.notifications.models import Notification, NotificationEndpoint
from billing.notifications.outbox import notify, pending
from billing.notifications.signing_secrets import SecretBox
from billing.notifications.views import EndpointKind, EndpointSecret, EndpointStatus, EndpointView
from core.db import database_now, newest_first, unit_of_work
from core.email_addresses import require_email
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound, TooManyRequests
from core.ids import new_id
from core.struct_types import view_of

BY_TENANT: Final = "disabled by the tenant"
_STORE_NOW: Final = "Store this signing secret now. It is shown only once."
_CODE_SENT: Final = "A message with a code is on its way to this address. Confirm the endpoint with the code."
_NOT_KEPT: Final = (
    "This is a replay without the signing secret, which was only in the first response. If you lost it, rotate it."
)
_RESEALED_AT_ONCE: Final = 200
_HOUR: Final = timedelta(hours=1)
_REQUESTED: Final = (ENDPOINT_TEST, ENDPOINT_CONFIRMATION)
_CALLBACK: Final = ["batch.callback"]
"""The event types of an endpoint that a callback has made. No event has this type: it gets what is sent to it alone."""


def create(
    session: Session,
    box: SecretBox,
    *,
    tenant_id: str,
    kind: EndpointKind,
    address: str,
    event_types: Sequence[str],
    endpoints_max: int,
) -> EndpointSecret:
    """Add an endpoint: an active webhook, or an e-mail address that must be confirmed. The caller has locked the
    tenant, so that no two requests create the last one. Raises Conflict, Forbidden and InvalidRequest.
    """
    if kind == "email":
        require_email(address, param="address")
    mine = _of(tenant_id).where(NotificationEndpoint.event_types != _CALLBACK)
    if session.exec(
        _of(tenant_id).where(NotificationEndpoint.kind == kind, NotificationEndpoint.address == address)
    ).first():
        raise Conflict(
            "address: you have an endpoint with this address. Change that one.",
            code="notification_endpoint_exists",
            param="address",
        )
    if len(session.exec(mine.limit(endpoints_max)).all()) >= endpoints_max:
        raise Forbidden(
            f"notification_endpoints: a tenant may have at most {endpoints_max}. Delete one that is no longer used.",
            code="notification_endpoint_quota_exceeded",
        )
    return _add(session, box, tenant_id, kind, address, event_types)


def for_callback(
    session: Session,
    box: SecretBox,
    *,
    tenant_id: str,
    url: str,
    in_use: Collection[str | None],
    callbacks_max: int,
) -> tuple[str, str | None]:
    """The id of the tenant's webhook with this address, which is made where there is none: then with its new secret. A
    new one of more than ``callbacks_max`` takes the place of the one that was called for least recently and is not
    ``in_use``. The caller has locked the tenant and looked the host up. Raises Conflict for one that is disabled, and
    Forbidden.
    """
    webhooks = _of(tenant_id).where(NotificationEndpoint.kind == "webhook")
    if (found := session.exec(webhooks.where(NotificationEndpoint.address == url)).first()) is not None:
        require_active(found)
        found.updated_at = database_now(session)
        return found.id, None
    callbacks = webhooks.where(NotificationEndpoint.event_types == _CALLBACK)
    made = session.exec(callbacks.order_by(col(NotificationEndpoint.updated_at))).all()
    if len(made) >= callbacks_max:
        undelivered = pending(session, {each.id for each in made})
        unused = next((each.id for each in made if each.id not in in_use and not undelivered[each.id]), None)
        if unused is None:
            raise Forbidden(
                f"callback_url: a tenant may have {callbacks_max} callbacks that have not been called. Wait until some "
                "have.",
                code="notification_endpoint_quota_exceeded",
                param="callback_url",
            )
        delete(session, tenant_id=tenant_id, endpoint_id=unused)
    created = _add(session, box, tenant_id, "webhook", url, _CALLBACK)
    return created.id, created.secret


def without_secret(created: EndpointSecret) -> EndpointSecret:
    """The response that is stored for an Idempotency-Key: without the secret."""
    return created if created.secret is None else msgspec.structs.replace(created, secret=None, note=_NOT_KEPT)


def list_endpoints(session: Session, *, tenant_id: str, after: str | None, limit: int) -> list[EndpointView]:
    """The tenant's endpoints, newest first. ``after`` is the last id of the previous page."""
    mine = newest_first(_of(tenant_id), col(NotificationEndpoint.id), after=after, limit=limit)
    return [view_of(row, EndpointView) for row in session.exec(mine)]


def tenants_with(text: str) -> SelectOfScalar[str]:
    """A query of the tenants that get e-mail at an address which contains the text, in any case."""
    return select(NotificationEndpoint.tenant_id).where(
        NotificationEndpoint.kind == "email",
        NotificationEndpoint.status != "deleted",
        col(NotificationEndpoint.address).icontains(text, autoescape=True),
    )


def get(session: Session, *, tenant_id: str, endpoint_id: str) -> EndpointView:
    """One of the tenant's endpoints. Raises NotFound."""
    return view_of(find(session, tenant_id=tenant_id, endpoint_id=endpoint_id), EndpointView)


def change(
    session: Session,
    *,
    tenant_id: str,
    endpoint_id: str,
    event_types: Sequence[str] | None,
    status: EndpointStatus | None,
) -> EndpointView:
    """Choose other event types, disable the endpoint, or make it active again. What waits for a disabled endpoint ends,
    and can be replayed. Raises NotFound, and Conflict for an address that is not confirmed.
    """
    row, now = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id, lock=True), database_now(session)
    if event_types is not None:
        row.event_types = sorted(set(event_types))
    if status is not None and status != row.status:
        if row.status == "unconfirmed":
            raise _unconfirmed()
        row.status, row.disabled_reason = status, BY_TENANT if status == "disabled" else None
        row.failing_since = None
        if status == "disabled":
            fail_pending(session, row.id, "the endpoint is disabled")
    row.updated_at = now
    session.flush()
    return view_of(row, EndpointView)


def delete(session: Session, *, tenant_id: str, endpoint_id: str) -> None:
    """Delete an endpoint and forget its secrets. What waits for it ends. Raises NotFound."""
    row = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id, lock=True)
    row.status, row.disabled_reason, row.updated_at = "deleted", None, database_now(session)
    row.signing_secret = row.previous_secret = row.previous_secret_until = None
    session.flush()
    fail_pending(session, row.id, "the endpoint is deleted")


def rotate_secret(
    session: Session, box: SecretBox, *, tenant_id: str, endpoint_id: str, overlap_s: int
) -> EndpointSecret:
    """Give a webhook a new secret. Messages are signed with both for ``overlap_s``; a secret before the old one ends at
    once. Raises NotFound, and Conflict for e-mail.
    """
    row, now = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id, lock=True), database_now(session)
    if row.kind != "webhook":
        raise Conflict("An e-mail address has no signing secret. Only webhooks have one.", code="endpoint_not_webhook")
    secret = box.new_secret()
    row.previous_secret = row.signing_secret if overlap_s else None
    row.previous_secret_until = now + timedelta(seconds=overlap_s) if overlap_s else None
    row.signing_secret, row.updated_at = box.seal(secret, row.id), now
    session.flush()
    return _with_secret(row, secret, _STORE_NOW)


def confirm(session: Session, box: SecretBox, *, tenant_id: str, endpoint_id: str, code: str) -> EndpointView:
    """Make an e-mail address active with the code that was sent to it. Raises NotFound, and InvalidRequest for a wrong
    code. An endpoint that is confirmed stays as it is.
    """
    row = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id, lock=True)
    if row.status == "unconfirmed":
        if not box.confirms(code, row.id, row.address):
            raise InvalidRequest(
                "code: this is not the code that was sent to the address. Copy it from the message, or request another "
                "message.",
                code="invalid_confirmation_code",
                param="code",
            )
        row.status, row.updated_at = "active", database_now(session)
        session.flush()
    return view_of(row, EndpointView)


def request_message(session: Session, *, tenant_id: str, endpoint_id: str, per_hour_max: int) -> str:
    """Queue a test message to the endpoint, or the confirmation code to an address that is not confirmed. Returns the
    notification's id. The caller has locked the tenant. Raises NotFound, Conflict for a disabled endpoint, and
    TooManyRequests.
    """
    row = find(session, tenant_id=tenant_id, endpoint_id=endpoint_id)
    if row.status == "disabled":
        raise _inactive()
    now = database_now(session)
    recent = select(sa.func.count()).where(
        col(Notification.tenant_id) == tenant_id,
        col(Notification.event_type).in_(_REQUESTED),
        col(Notification.created_at) > now - _HOUR,
    )
    if session.exec(recent).one() >= per_hour_max:
        raise TooManyRequests(
            f"notification_endpoints: a tenant may request {per_hour_max} messages per hour. Try again later.",
            code="notification_messages_exceeded",
            retry_after_s=_HOUR.total_seconds(),
        )
    event_type = ENDPOINT_CONFIRMATION if row.status == "unconfirmed" else ENDPOINT_TEST
    written = notify(
        session,
        tenant_id=tenant_id,
        event_type=event_type,
        data={"endpoint_id": row.id},
        dedupe_key=f"{event_type}:{row.id}:{now.isoformat()}",
        endpoint_id=row.id,
    )
    assert written is not None, "the key has the time of this request, and the tenant is locked"
    return written


def reseal(engine: Engine, box: SecretBox) -> int:
    """Encrypt the signing secrets of all webhooks again with the current key, so that the one before it can be dropped:
    in batches of one transaction each. Returns the number of endpoints. Raises SecretUnreadable for a secret that no
    key opens; what was done until then stays. Can be repeated.
    """
    count, after = 0, ""
    while True:
        with unit_of_work(engine) as session:
            sealed = select(NotificationEndpoint).where(col(NotificationEndpoint.signing_secret).is_not(None))
            following = sealed.where(NotificationEndpoint.id > after).order_by(col(NotificationEndpoint.id))
            rows = session.exec(following.limit(_RESEALED_AT_ONCE).with_for_update(key_share=True)).all()
            for row in rows:
                row.signing_secret = _sealed_again(box, row.signing_secret, row.id)
                row.previous_secret = _sealed_again(box, row.previous_secret, row.id)
        if not rows:
            return count
        count, after = count + len(rows), rows[-1].id


def find(session: Session, *, tenant_id: str, endpoint_id: str, lock: bool = False) -> NotificationEndpoint:
    """The row of one of the tenant's endpoints that is not deleted. Raises NotFound."""
    mine = _of(tenant_id).where(NotificationEndpoint.id == endpoint_id)
    found = session.exec(mine.with_for_update(key_share=True) if lock else mine) if endpoint_id.isascii() else None
    row = found.first() if found else None
    if row is None:
        raise NotFound("Notification endpoint not found.", code="notification_endpoint_not_found")
    return row


def require_active(row: NotificationEndpoint) -> None:
    """Raise Conflict unless messages may be queued for the endpoint."""
    if row.status == "unconfirmed":
        raise _unconfirmed()
    if row.status != "active":
        raise _inactive()


def _add(
    session: Session, box: SecretBox, tenant_id: str, kind: EndpointKind, address: str, event_types: Sequence[str]
) -> EndpointSecret:
    endpoint_id, now = new_id("nep"), database_now(session)
    secret = box.new_secret() if kind == "webhook" else None
    row = NotificationEndpoint(
        id=endpoint_id,
        tenant_id=tenant_id,
        kind=kind,
        address=address,
        event_types=sorted(set(event_types)),
        status="active" if kind == "webhook" else "unconfirmed",
        signing_secret=box.seal(secret, endpoint_id) if secret else None,
        created_at=now,
        updated_at=now,
    )
    session.add(row)
    session.flush()
    return _with_secret(row, secret, _STORE_NOW if secret else _CODE_SENT)


def _sealed_again(box: SecretBox, sealed: bytes | None, endpoint_id: str) -> bytes | None:
    return None if sealed is None else box.seal(box.open(sealed, endpoint_id), endpoint_id)


def _of(tenant_id: str) -> SelectOfScalar[NotificationEndpoint]:
    return select(NotificationEndpoint).where(
        NotificationEndpoint.tenant_id == tenant_id, NotificationEndpoint.status != "deleted"
    )


def _with_secret(row: NotificationEndpoint, secret: str | None, note: str) -> EndpointSecret:
    return view_of(row, EndpointSecret, secret=secret, note=note)


def _unconfirmed() -> Conflict:
    return Conflict(
        "This address is not confirmed. Confirm it with the code that was sent to it.", code="endpoint_unconfirmed"
    )


def _inactive() -> Conflict:
    return Conflict("This endpoint is disabled. Set its status to active first.", code="endpoint_disabled")
