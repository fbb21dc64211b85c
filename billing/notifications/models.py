"""The tables of notifications: where a tenant wants them, what was said, and how each delivery stands.

A notification is written once and never changes. An endpoint is never removed, because deliveries name it; a deleted
one keeps no secret. Only deliveries and the state of endpoints change.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class NotificationEndpoint(SQLModel, table=True):
    """One e-mail address or webhook of a tenant. Empty ``event_types`` stand for all. ``signing_secret`` and
    ``previous_secret`` are encrypted; see ``signing_secrets``.
    """

    __tablename__ = "notification_endpoints"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('email', 'webhook')", name="kind_known"),
        sa.CheckConstraint("status IN ('unconfirmed', 'active', 'disabled', 'deleted')", name="status_known"),
        sa.CheckConstraint("status <> 'unconfirmed' OR kind = 'email'", name="only_email_is_confirmed"),
        sa.CheckConstraint(
            "(signing_secret IS NOT NULL) = (kind = 'webhook' AND status <> 'deleted')", name="webhooks_have_a_secret"
        ),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_secret_until IS NULL)", name="previous_secret_expires"
        ),
        sa.CheckConstraint("(disabled_reason IS NOT NULL) = (status = 'disabled')", name="reason_fits_status"),
        sa.Index(
            "uq_notification_endpoints_address",
            "tenant_id",
            "kind",
            "address",
            unique=True,
            postgresql_where=sa.text("status <> 'deleted'"),
        ),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(index=True, sa_type=sa.Text)
    kind: str = Field(sa_type=sa.Text)
    address: str = Field(sa_type=sa.Text)
    event_types: list[str] = Field(sa_type=ARRAY(sa.Text))
    status: str = Field(sa_type=sa.Text)
    disabled_reason: str | None = Field(default=None, sa_type=sa.Text)
    signing_secret: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    previous_secret: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    previous_secret_until: datetime | None = Field(default=None, sa_type=Instant)
    last_success_at: datetime | None = Field(default=None, sa_type=Instant)
    failing_since: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
    updated_at: datetime = Field(sa_type=Instant)


class Notification(SQLModel, table=True):
    """One fact that a tenant is informed of, at most once for each ``dedupe_key``. Its id is the ``webhook-id``."""

    __tablename__ = "notifications"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "dedupe_key"),
        sa.CheckConstraint("length(dedupe_key) BETWEEN 1 AND 300", name="dedupe_key_bounded"),
        sa.Index("ix_notifications_tenant_id_created_at", "tenant_id", "created_at"),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(sa_type=sa.Text)
    event_type: str = Field(sa_type=sa.Text)
    data: dict[str, Any] = Field(sa_type=JSONB)
    dedupe_key: str = Field(sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)


class NotificationDelivery(SQLModel, table=True):
    """One notification on its way to one endpoint. ``attempts`` is also the fence: a worker records a result only if no
    other worker has begun an attempt since. A replay sets ``queued_at``, from which retries are limited, and
    ``attempts_before``, which back-off does not count. While an attempt runs, ``leased_until`` is set, and
    ``next_attempt_at`` is the same: what a dead worker holds becomes due by itself.
    """

    __tablename__ = "notification_deliveries"
    __table_args__ = (
        sa.UniqueConstraint("notification_id", "endpoint_id"),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state_known"),
        sa.CheckConstraint("attempts_before BETWEEN 0 AND attempts", name="attempts_possible"),
        sa.CheckConstraint("(delivered_at IS NOT NULL) = (state = 'delivered')", name="delivered_has_time"),
        sa.CheckConstraint("leased_until IS NULL OR state = 'pending'", name="only_pending_is_leased"),
        sa.Index("ix_notification_deliveries_due", "next_attempt_at", postgresql_where=sa.text("state = 'pending'")),
        sa.Index(
            "ix_notification_deliveries_of_endpoint",
            "endpoint_id",
            "next_attempt_at",
            postgresql_where=sa.text("state = 'pending'"),
        ),
        sa.Index(
            "ix_notification_deliveries_leased",
            "endpoint_id",
            postgresql_where=sa.text("leased_until IS NOT NULL"),
        ),
        sa.Index("ix_notification_deliveries_tenant_id_id", "tenant_id", "id"),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    notification_id: str = Field(foreign_key="notifications.id", sa_type=sa.Text)
    endpoint_id: str = Field(foreign_key="notification_endpoints.id", sa_type=sa.Text)
    tenant_id: str = Field(sa_type=sa.Text)
    state: str = Field(sa_type=sa.Text)
    attempts: int = Field(default=0, sa_type=sa.BigInteger)
    attempts_before: int = Field(default=0, sa_type=sa.BigInteger)
    queued_at: datetime = Field(sa_type=Instant)
    next_attempt_at: datetime = Field(sa_type=Instant)
    leased_until: datetime | None = Field(default=None, sa_type=Instant)
    last_error: str | None = Field(default=None, sa_type=sa.Text)
    delivered_at: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
