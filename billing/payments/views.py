"""What payments show to other packages: pages of Stripe's, top-ups, queues with their operations, events and alarms."""

from datetime import datetime
from typing import Literal

import msgspec

PageState = Literal["pending", "ready", "failed"]
TopUpState = Literal["pending", "paid", "failed", "needs_owner"]
OperationState = Literal["pending", "done", "failed", "cancelled"]
EventState = Literal["stored", "handled", "ignored", "failed"]


class PaymentPageView(msgspec.Struct, frozen=True, kw_only=True):
    """A page on which the owner acts. ``simulated`` pages belong to the Stripe simulator and move no real money."""

    id: str
    state: PageState
    url: str | None
    failure: str | None
    simulated: bool
    created_at: datetime


class TopUpView(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase of credit. The credit is there once it is ``paid``."""

    id: str
    amount_cents: int
    state: TopUpState
    failure: str | None
    created_at: datetime


class PaymentQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's queue of operations at Stripe. A stopped one waits for an admin."""

    id: str  # the tenant's id
    customer: str | None
    test_clock: str | None
    stopped_reason: str | None
    stopped_at: datetime | None
    pending: int
    standing: Literal["good", "suspended"]


class PaymentOperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, in the order in which a tenant's operations run."""

    id: str
    tenant_id: str
    kind: str
    state: OperationState
    attempts: int
    last_error: str | None
    created_at: datetime
    finished_at: datetime | None


class PaymentAlarmView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an admin has to look at."""

    id: str
    kind: str
    tenant_id: str | None
    message: str
    created_at: datetime
    seen_at: datetime | None


class StripeEventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event of Stripe's and how its handling stands. ``note`` says why it had no effect, or what failed."""

    id: str
    type: str
    object_id: str | None
    customer: str | None
    state: EventState
    source: Literal["webhook", "list"]
    note: str | None
    attempts: int
    created_at: datetime
    received_at: datetime
