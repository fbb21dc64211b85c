"""Wire types of the limits room. Answers are ``billing.limits.views``."""

from typing import Annotated, Literal

import msgspec

from billing.limits.views import AutoTopUp

LimitNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000_000)]
PositiveNanos = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)]
Floors = Annotated[tuple[LimitNanos, ...], msgspec.Meta(max_length=10)]


class SpendingPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a tenant pays. An omitted field keeps its value; null removes a limit, and turns auto top-up off.

    ``mode``: a ``prepaid`` tenant can spend at most its credit; a ``postpaid`` one is invoiced, and stops when
    what it owes reaches the credit limit.
    """

    mode: Literal["prepaid", "postpaid"] | msgspec.UnsetType = msgspec.UNSET
    credit_limit_nanos: LimitNanos | msgspec.UnsetType | None = msgspec.UNSET
    invoice_threshold_nanos: PositiveNanos | msgspec.UnsetType | None = msgspec.UNSET
    balance_floors_nanos: Floors | msgspec.UnsetType = msgspec.UNSET
    auto_top_up: AutoTopUp | msgspec.UnsetType | None = msgspec.UNSET


class NewSpendLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard limit. ``subject_id`` is the id of the key or of the adapter; leave it out for the whole tenant. A limit
    of the same subject and window is replaced.
    """

    scope: Literal["tenant", "key", "adapter"]
    window: Literal["day", "month"]
    amount_nanos: LimitNanos
    subject_id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}(?!\n)$")] | None = None
