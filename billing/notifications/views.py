"""What the control plane shows of notifications. Tables never leave this package."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

EndpointKind = Literal["email", "webhook"]
EndpointStatus = Literal["unconfirmed", "active", "disabled"]
DeliveryState = Literal["pending", "delivered", "failed"]


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint, without its signing secret. Empty ``event_types`` stand for all."""

    id: str
    kind: EndpointKind
    address: str
    event_types: Sequence[str]
    status: EndpointStatus
    disabled_reason: str | None
    failing_since: datetime | None
    last_success_at: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime


class EndpointSecret(EndpointView, frozen=True, kw_only=True):
    """An endpoint with its new signing secret, which is shown only once: null for e-mail, and in a replay for an
    Idempotency-Key.
    """

    secret: str | None
    note: str


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """One notification on its way to one endpoint. ``notification_id`` is the ``webhook-id`` of every attempt."""

    id: str
    endpoint_id: str
    notification_id: str
    event_type: str
    data: dict[str, Any]  # JSON, by the event's type
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime


class QueuedAgain(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay: how many deliveries were queued, and whether the same call would queue more."""

    queued: int
    more: bool
