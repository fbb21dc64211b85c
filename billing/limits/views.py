"""What other packages see of spending terms and limits. Tables never leave this package."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.stripe.objects import TOP_UP_CENTS_MAX
from core import fields
from core.fields import about

BillingMode = Literal["prepaid", "postpaid"]
LimitScope = Literal["tenant", "key", "adapter"]
LimitWindow = Literal["day", "month"]
LimitNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000_000)]


class AutoTopUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At a balance of ``floor_nanos``, ``amount_cents`` are paid, at most ``month_cents_max`` in a UTC month."""

    amount_cents: Annotated[int, msgspec.Meta(ge=50, le=TOP_UP_CENTS_MAX), fields.AMOUNT_CENTS]
    floor_nanos: Annotated[LimitNanos, about("Balance in nanodollars at which it acts.")]
    month_cents_max: Annotated[int, msgspec.Meta(ge=50, le=100_000_000), about("Most cents to pay in a UTC month.")]


class SpendingView(msgspec.Struct, frozen=True, kw_only=True):
    """How a tenant pays, and what it may still spend by that. Null amounts are not limited."""

    mode: Annotated[BillingMode, fields.MODE]
    credit_limit_nanos: Annotated[int | None, fields.CREDIT_LIMIT_NANOS]
    invoice_threshold_nanos: Annotated[int | None, fields.INVOICE_THRESHOLD_NANOS]
    balance_floors_nanos: Annotated[Sequence[int], fields.BALANCE_FLOORS_NANOS]
    auto_top_up: Annotated[AutoTopUp | None, fields.AUTO_TOP_UP]
    balance_nanos: Annotated[int, fields.BALANCE_NANOS]
    unbilled_nanos: Annotated[int, fields.UNBILLED_NANOS]
    receivable_nanos: Annotated[int, about("Nanodollars that are owed on invoices.")]
    headroom_nanos: Annotated[
        int | None, about("Nanodollars that may still be spent by credit and credit limit; null for no limit.")
    ]


class SpendLimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A hard limit, and what is spent of it in the window of now. ``subject_id`` is the key's or the adapter's id, and
    empty for the whole tenant.
    """

    id: Annotated[str, fields.ID]
    scope: Annotated[LimitScope, fields.SPEND_LIMIT_SCOPE]
    subject_id: Annotated[str, fields.SUBJECT_ID]
    window: Annotated[LimitWindow, fields.WINDOW]
    amount_nanos: Annotated[int, fields.SPEND_LIMIT_NANOS]
    spent_nanos: Annotated[int, about("Nanodollars spent in the window of now.")]
    window_start: Annotated[datetime, about("Start of the window of now.")]
    window_end: Annotated[datetime, about("End of the window of now, exclusive.")]
    created_at: Annotated[datetime, fields.CREATED_AT]
    updated_at: Annotated[datetime, fields.UPDATED_AT]
