"""What the control plane shows of notifications. Tables never leave this package."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from billing.notifications.event_types import SUBSCRIBABLE
from core import fields
from core.fields import about

EndpointKind = Literal["email", "webhook"]
EndpointStatus = Literal["unconfirmed", "active", "disabled"]
if TYPE_CHECKING:
    EventTypeName = str
else:
    EventTypeName = Literal[SUBSCRIBABLE]
DeliveryState = Literal["pending", "delivered", "failed"]


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint, without its signing secret. Empty ``event_types`` stand for all."""

    id: Annotated[str, fields.ID]
    kind: Annotated[EndpointKind, fields.ENDPOINT_KIND]
    address: Annotated[str, fields.ENDPOINT_ADDRESS]
    event_types: Annotated[Sequence[str], fields.EVENT_TYPES]
    status: Annotated[EndpointStatus, fields.STATUS]
    disabled_reason: Annotated[str | None, about("Why it is disabled; null otherwise.")]
    failing_since: Annotated[
        datetime | None, about("When the first of the failures began that no success has followed; null without one.")
    ]
    last_success_at: Annotated[datetime | None, about("When it last accepted a message; null before.")]
    previous_secret_until: Annotated[
        datetime | None, about("Until when messages are signed with the old secret too; null without one.")
    ]
    created_at: Annotated[datetime, fields.CREATED_AT]
    updated_at: Annotated[datetime, fields.UPDATED_AT]


class EndpointSecret(EndpointView, frozen=True, kw_only=True):
    """An endpoint with its new signing secret, which is shown only once: null for e-mail, and in a replay for an
    Idempotency-Key.
    """

    secret: Annotated[str | None, about("The signing secret. It is shown once; null for e-mail.")]
    note: Annotated[str, about("What to do next.")]


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """One notification on its way to one endpoint. ``notification_id`` is the ``webhook-id`` of every attempt."""

    id: Annotated[str, fields.ID]
    endpoint_id: Annotated[str, about("Id of the notification endpoint.")]
    notification_id: Annotated[str, about("Id of the notification: the webhook-id of every attempt.")]
    event_type: Annotated[str, about("What the notification is about.")]
    data: Annotated[dict[str, Any], about("Values of the notification, by its type.")]  # JSON, by the event's type
    state: Annotated[DeliveryState, about("State of the delivery.")]
    attempts: Annotated[int, about("How often it was tried, over all replays.")]
    next_attempt_at: Annotated[datetime | None, about("When it is tried next; null unless it is pending.")]
    last_error: Annotated[str | None, fields.LAST_ERROR]
    delivered_at: Annotated[datetime | None, about("When the receiver accepted it; null before.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class QueuedAgain(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay: how many deliveries were queued, and whether the same call would queue more."""

    queued: Annotated[int, about("Deliveries that were queued.")]
    more: Annotated[bool, about("Whether the same call would queue more.")]
