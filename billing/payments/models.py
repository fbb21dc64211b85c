"""The tables of payments: each tenant's queue of operations at Stripe, charges, money that arrived and went back,
Stripe's events, dunning, and alarms. Triggers refuse a change of what must stay as it was written.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class PaymentQueue(SQLModel, table=True):
    """A tenant at Stripe: its customer, and its operations, which run one after the other. ``next_attempt_at`` is null
    while nothing waits. ``attempts`` is the fence: the number of the last claim. A worker with an older one changes
    neither the queue nor its operations.
    ``clock_at`` is the time of the customer's test clock, which then dates the tenant's dunning.
    """

    __tablename__ = "payment_queues"
    __table_args__ = (
        sa.CheckConstraint("(stopped_reason IS NULL) = (stopped_at IS NULL)", name="stop_has_reason"),
        sa.CheckConstraint("clock_at IS NULL OR test_clock IS NOT NULL", name="clock_known"),
        sa.Index(
            "ix_payment_queues_due",
            "next_attempt_at",
            postgresql_where=sa.text("next_attempt_at IS NOT NULL AND stopped_at IS NULL"),
        ),
    )

    tenant_id: str = Field(primary_key=True, sa_type=sa.Text)
    customer_id: str | None = Field(default=None, unique=True, sa_type=sa.Text)
    test_clock: str | None = Field(default=None, sa_type=sa.Text)
    clock_at: datetime | None = Field(default=None, sa_type=Instant)
    stopped_reason: str | None = Field(default=None, sa_type=sa.Text)
    stopped_at: datetime | None = Field(default=None, sa_type=Instant)
    next_attempt_at: datetime | None = Field(default=None, sa_type=Instant)
    attempts: int = Field(default=0, sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)


class PaymentOperation(SQLModel, table=True):
    """One operation, in the order of ``position``, with the call that is its effect. ``content`` is frozen; ``decided``
    is what the call is about, where that is known only when the operation's turn comes; ``result`` says what came of
    it. ``attempts`` counts its claims.

    ``idempotency_key`` is written before the call is sent, ``object_id`` after its answer. With ``look_up`` the object
    is searched at Stripe before anything is sent. ``approved`` says that an admin has let the operation go on.
    """

    __tablename__ = "payment_operations"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "dedupe_key"),
        sa.CheckConstraint("state IN ('pending', 'done', 'failed', 'cancelled')", name="state_known"),
        sa.CheckConstraint("(finished_at IS NULL) = (state = 'pending')", name="finished_has_time"),
        sa.CheckConstraint("(idempotency_key IS NULL) = (key_since IS NULL)", name="key_has_time"),
        sa.Index(
            "ix_payment_operations_waiting", "tenant_id", "position", postgresql_where=sa.text("state = 'pending'")
        ),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    position: int = Field(sa_column=sa.Column(sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True))
    tenant_id: str = Field(foreign_key="payment_queues.tenant_id", sa_type=sa.Text)
    kind: str = Field(sa_type=sa.Text)
    content: dict[str, Any] = Field(sa_type=JSONB)
    dedupe_key: str = Field(sa_type=sa.Text)
    state: str = Field(default="pending", sa_type=sa.Text)
    attempts: int = Field(default=0, sa_type=sa.Integer)
    last_error: str | None = Field(default=None, sa_type=sa.Text)
    decided: str | None = Field(default=None, sa_type=sa.Text)
    idempotency_key: str | None = Field(default=None, unique=True, sa_type=sa.Text)
    key_number: int = Field(default=0, sa_type=sa.Integer, sa_column_kwargs={"server_default": sa.text("0")})
    key_since: datetime | None = Field(default=None, sa_type=Instant)
    look_up: bool = Field(default=False, sa_column_kwargs={"server_default": sa.false()})
    object_id: str | None = Field(default=None, sa_type=sa.Text)
    approved: bool = Field(default=False, sa_column_kwargs={"server_default": sa.false()})
    result: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    created_at: datetime = Field(sa_type=Instant)
    finished_at: datetime | None = Field(default=None, sa_type=Instant)


class PaymentCharge(SQLModel, table=True):
    """Money that is asked of a tenant by one payment intent, written before that is sent. Either for what is due of an
    invoice, and of others that are too small to be charged alone (``covers``: cents by invoice), or for credit.

    ``method`` is the saved card. With ``on_page`` the owner pays at ``page``, a Checkout session. Only its state
    changes: ``needs_owner`` is a failure that another attempt with the same card repeats.
    """

    __tablename__ = "payment_charges"
    __table_args__ = (
        sa.CheckConstraint("amount_cents > 0", name="amount_positive"),
        sa.CheckConstraint("(invoice_id IS NULL) = (covers = '{}')", name="covers_invoices"),
        sa.CheckConstraint("state IN ('pending', 'paid', 'failed', 'needs_owner')", name="state_known"),
        sa.Index("ix_payment_charges_tenant_id", "tenant_id", "id"),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(sa_type=sa.Text)
    invoice_id: str | None = Field(default=None, index=True, sa_type=sa.Text)
    covers: dict[str, int] = Field(default_factory=dict, sa_type=JSONB)
    amount_cents: int = Field(sa_type=sa.BigInteger)
    on_page: bool
    method: str | None = Field(default=None, sa_type=sa.Text)
    page: str | None = Field(default=None, sa_type=sa.Text)
    state: str = Field(default="pending", sa_type=sa.Text)
    failure: str | None = Field(default=None, sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)


class StripeEventRow(SQLModel, table=True):
    """An event of Stripe's, stored once. Everything but its handling is frozen."""

    __tablename__ = "stripe_events"
    __table_args__ = (
        sa.CheckConstraint("state IN ('stored', 'handled', 'ignored', 'failed')", name="state_known"),
        sa.CheckConstraint("source IN ('webhook', 'list')", name="source_known"),
        sa.CheckConstraint("(handled_at IS NULL) = (state IN ('stored', 'failed'))", name="handled_has_time"),
        sa.Index("ix_stripe_events_due", "next_attempt_at", postgresql_where=sa.text("state = 'stored'")),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    type: str = Field(sa_type=sa.Text)
    object_kind: str = Field(sa_type=sa.Text)
    object_id: str | None = Field(default=None, sa_type=sa.Text)
    customer: str | None = Field(default=None, sa_type=sa.Text)
    api_version: str | None = Field(default=None, sa_type=sa.Text)
    source: str = Field(sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)
    received_at: datetime = Field(index=True, sa_type=Instant)
    state: str = Field(default="stored", sa_type=sa.Text)
    attempts: int = Field(default=0, sa_type=sa.Integer)
    next_attempt_at: datetime = Field(sa_type=Instant)
    note: str | None = Field(default=None, sa_type=sa.Text)
    handled_at: datetime | None = Field(default=None, sa_type=Instant)


class StripeEventsListed(SQLModel, table=True):
    """Up to which instant events were listed from Stripe. One row."""

    __tablename__ = "stripe_events_listed"

    name: str = Field(primary_key=True, sa_type=sa.Text)
    listed_until: datetime = Field(sa_type=Instant)


class ReceivedPayment(SQLModel, table=True):
    """A payment intent whose money arrived, booked once. Insert-only. A second one of a charge is booked too."""

    __tablename__ = "received_payments"

    payment_intent: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(index=True, sa_type=sa.Text)
    charge_id: str = Field(foreign_key="payment_charges.id", index=True, sa_type=sa.Text)
    amount_cents: int = Field(sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)


class ReturnedPayment(SQLModel, table=True):
    """Money of a payment that went back, by a refund or a dispute, written once; negative where it came to us again.
    ``booked_cents`` of it are booked by the transfer of this row, the rest by a credit note or a refund of credit.
    """

    __tablename__ = "returned_payments"
    __table_args__ = (
        sa.CheckConstraint("(booked_cents = 0) = (transfer_id IS NULL)", name="transfer_books"),
        sa.CheckConstraint("abs(booked_cents) <= abs(amount_cents)", name="booked_of_amount"),
    )

    stripe_object: str = Field(primary_key=True, sa_type=sa.Text)
    payment_intent: str = Field(foreign_key="received_payments.payment_intent", index=True, sa_type=sa.Text)
    amount_cents: int = Field(sa_type=sa.BigInteger)
    booked_cents: int = Field(default=0, sa_type=sa.BigInteger)
    transfer_id: str | None = Field(default=None, unique=True, sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)


class DunningCase(SQLModel, table=True):
    """The collection of one invoice whose payment failed. ``started_at`` and ``next_attempt_at`` are times of the
    tenant's clock. While an attempt is queued, ``next_attempt_at`` is null. ``pay_token`` is the secret part of the
    address at which the owner pays.

    Or the reminders of an invoice that is paid by transfer: its attempts are reminders, ``started_at`` is the day on
    which it is due, and it suspends no tenant: ``suspends_at`` is null.
    """

    __tablename__ = "dunning_cases"
    __table_args__ = (sa.Index("ix_dunning_cases_open", "tenant_id", postgresql_where=sa.text("ended_at IS NULL")),)

    invoice_id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(index=True, sa_type=sa.Text)
    started_at: datetime = Field(sa_type=Instant)
    attempts: int = Field(default=1, sa_type=sa.Integer)
    next_attempt_at: datetime | None = Field(default=None, sa_type=Instant)
    suspends_at: datetime | None = Field(default=None, sa_type=Instant)
    suspended: bool = False
    tried_method: str | None = Field(default=None, sa_type=sa.Text)
    pay_token: str = Field(unique=True, sa_type=sa.Text)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)


class PaymentStanding(SQLModel, table=True):
    """Whether a tenant is suspended for an unpaid invoice. The control plane applies a change and sets ``applied_at``;
    ``ours`` says whether the suspension was made by it, so that it may be lifted again.
    """

    __tablename__ = "payment_standings"
    __table_args__ = (
        sa.CheckConstraint("standing IN ('good', 'suspended')", name="standing_known"),
        sa.Index("ix_payment_standings_waiting", "changed_at", postgresql_where=sa.text("applied_at IS NULL")),
    )

    tenant_id: str = Field(primary_key=True, sa_type=sa.Text)
    standing: str = Field(sa_type=sa.Text)
    reason: str = Field(sa_type=sa.Text)
    changed_at: datetime = Field(sa_type=Instant)
    applied_at: datetime | None = Field(default=None, sa_type=Instant)
    ours: bool = False


class PaymentAlarm(SQLModel, table=True):
    """Something that an admin has to look at. One for each ``dedupe_key``."""

    __tablename__ = "payment_alarms"

    id: str = Field(primary_key=True, sa_type=sa.Text)
    kind: str = Field(sa_type=sa.Text)
    tenant_id: str | None = Field(default=None, index=True, sa_type=sa.Text)
    message: str = Field(sa_type=sa.Text)
    dedupe_key: str = Field(unique=True, sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)
    seen_at: datetime | None = Field(default=None, sa_type=Instant)
