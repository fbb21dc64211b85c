"""What payments show to other packages: pages of Stripe's, top-ups, queues with their operations, events and alarms."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from core import fields
from core.fields import about

PageState = Literal["pending", "ready", "failed"]
TopUpState = Literal["pending", "paid", "failed", "needs_owner"]
OperationState = Literal["pending", "done", "failed", "cancelled"]
EventState = Literal["stored", "handled", "ignored", "failed"]


class PaymentPageView(msgspec.Struct, frozen=True, kw_only=True):
    """A page on which the owner acts. ``simulated`` pages belong to the Stripe simulator and move no real money."""

    id: Annotated[str, fields.ID]
    state: Annotated[PageState, about("`ready` once the page is open.")]
    url: Annotated[str | None, about("Address of the page at Stripe; null before it is open.")]
    failure: Annotated[str | None, fields.FAILURE]
    simulated: Annotated[bool, about("Whether the page is the Stripe simulator's, which moves no real money.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class TopUpView(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase of credit. The credit is there once it is ``paid``."""

    id: Annotated[str, fields.ID]
    amount_cents: Annotated[int, about("Credit to buy, in cents (US dollars).")]
    state: Annotated[
        TopUpState,
        about("`paid` once the credit is there; `needs_owner` if the card's owner has to confirm the payment."),
    ]
    failure: Annotated[str | None, fields.FAILURE]
    created_at: Annotated[datetime, fields.CREATED_AT]


class PaymentQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's queue of operations at Stripe. A stopped one waits for an admin."""

    id: Annotated[str, fields.TENANT_ID]  # the tenant's id
    customer: Annotated[str | None, fields.CUSTOMER]
    test_clock: Annotated[str | None, fields.TEST_CLOCK]
    stopped_reason: Annotated[str | None, about("Why the queue stopped; null while it runs.")]
    stopped_at: Annotated[datetime | None, about("When the queue stopped; null while it runs.")]
    pending: Annotated[int, about("Operations that wait.")]
    standing: Annotated[Literal["good", "suspended"], about("Whether the tenant is suspended for an unpaid invoice.")]


class PaymentOperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, in the order in which a tenant's operations run."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    kind: Annotated[str, about("What is done at Stripe.")]
    state: Annotated[OperationState, about("State of the operation.")]
    attempts: Annotated[int, about("How often it was tried.")]
    last_error: Annotated[str | None, fields.LAST_ERROR]
    created_at: Annotated[datetime, fields.CREATED_AT]
    finished_at: Annotated[datetime | None, fields.FINISHED_AT]


class PaymentAlarmView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an admin has to look at."""

    id: Annotated[str, fields.ID]
    kind: Annotated[str, about("Kind of alarm; docs/how-to/connect-stripe.md says what to do for each.")]
    tenant_id: Annotated[str | None, fields.TENANT_ID]
    message: Annotated[str, fields.DETAIL]
    created_at: Annotated[datetime, fields.CREATED_AT]
    seen_at: Annotated[datetime | None, about("When an admin noted that somebody had looked; null before.")]


class StripeEventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event of Stripe's and how its handling stands. ``note`` says why it had no effect, or what failed."""

    id: Annotated[str, fields.ID]
    type: Annotated[str, about("Stripe's name for what happened.")]
    object_id: Annotated[str | None, about("Id of the object at Stripe that the event is about; null for some types.")]
    customer: Annotated[str | None, fields.CUSTOMER]
    state: Annotated[EventState, about("`ignored` events had no effect; `failed` ones wait for an admin.")]
    source: Annotated[Literal["webhook", "list"], about("Whether a webhook brought it or a list of events.")]
    note: Annotated[str | None, about("Why it had no effect, or how handling it failed; null otherwise.")]
    attempts: Annotated[int, about("How often handling it was tried.")]
    created_at: Annotated[datetime, about("When it happened, by Stripe's clock.")]
    received_at: Annotated[datetime, about("When it was stored.")]
