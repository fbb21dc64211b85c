"""What other packages see of spending terms and limits. Tables never leave this package."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.payments.settings import TOP_UP_CENTS_MAX

BillingMode = Literal["prepaid", "postpaid"]
LimitScope = Literal["tenant", "key", "adapter"]
LimitWindow = Literal["day", "month"]


class AutoTopUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At a balance of ``floor_nanos``, ``amount_cents`` are paid, at most ``month_cents_max`` in a UTC month."""

    amount_cents: Annotated[int, msgspec.Meta(ge=50, le=TOP_UP_CENTS_MAX)]
    floor_nanos: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000_000)]
    month_cents_max: Annotated[int, msgspec.Meta(ge=50, le=100_000_000)]


class SpendingView(msgspec.Struct, frozen=True, kw_only=True):
    """How a tenant pays, and what it may still spend by that. Null amounts are not limited."""

    mode: BillingMode
    credit_limit_nanos: int | None
    invoice_threshold_nanos: int | None
    balance_floors_nanos: Sequence[int]
    auto_top_up: AutoTopUp | None
    balance_nanos: int
    unbilled_nanos: int
    receivable_nanos: int
    headroom_nanos: int | None


class SpendLimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A hard limit, and what is spent of it in the window of now. ``subject_id`` is the key's or the adapter's id, and
    empty for the whole tenant.
    """

    id: str
    scope: LimitScope
    subject_id: str
    window: LimitWindow
    amount_nanos: int
    spent_nanos: int
    window_start: datetime
    window_end: datetime
    created_at: datetime
    updated_at: datetime
