"""Wire types of the limits room. Answers are ``billing.limits.views``."""

from typing import Annotated, Literal

import msgspec

from billing.limits.views import AutoTopUp
from core import fields

LimitNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000_000)]
PositiveNanos = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)]
Floors = Annotated[tuple[LimitNanos, ...], msgspec.Meta(max_length=10)]


class SpendingPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a tenant pays. An omitted field keeps its value; null removes a limit, and turns auto top-up off.

    ``mode``: a ``prepaid`` tenant can spend at most its credit; a ``postpaid`` one is invoiced, and stops when
    what it owes reaches the credit limit.
    """

    mode: Annotated[Literal["prepaid", "postpaid"] | msgspec.UnsetType, fields.MODE] = msgspec.UNSET
    credit_limit_nanos: Annotated[LimitNanos | msgspec.UnsetType | None, fields.CREDIT_LIMIT_NANOS] = msgspec.UNSET
    invoice_threshold_nanos: Annotated[PositiveNanos | msgspec.UnsetType | None, fields.INVOICE_THRESHOLD_NANOS] = (
        msgspec.UNSET
    )
    balance_floors_nanos: Annotated[Floors | msgspec.UnsetType, fields.BALANCE_FLOORS_NANOS] = msgspec.UNSET
    auto_top_up: Annotated[AutoTopUp | msgspec.UnsetType | None, fields.AUTO_TOP_UP] = msgspec.UNSET


class NewSpendLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard limit. ``subject_id`` is the id of the key or of the adapter; leave it out for the whole tenant. A limit
    of the same subject and window is replaced.
    """

    scope: Annotated[Literal["tenant", "key", "adapter"], fields.SPEND_LIMIT_SCOPE]
    window: Annotated[Literal["day", "month"], fields.WINDOW]
    amount_nanos: Annotated[LimitNanos, fields.SPEND_LIMIT_NANOS]
    subject_id: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}(?!\n)$")] | None, fields.SUBJECT_ID
    ] = None
