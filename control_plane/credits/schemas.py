"""Wire types of the credits room. Answers are ``billing.credits.views``."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.settings import CREDIT_NANOS_MAX
from core import fields
from core.fields import about

CreditNanos = Annotated[int, msgspec.Meta(ge=1, le=CREDIT_NANOS_MAX)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
ModelId = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+(?!\n)$")]
Reference = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+(?!\n)$")]


class NewCredit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credit to grant. ``paid`` credit was paid for outside of Tenora and comes in whole cents; ``promotional`` credit
    is a gift and lowers the taxable amount. Without ``effective_from`` it begins now, without ``expires_at`` it never
    ends, without ``models`` it pays for everything. One ``reference`` grants once.
    """

    kind: Annotated[Literal["paid", "promotional"], fields.LOT_KIND]
    amount_nanos: Annotated[CreditNanos, fields.AMOUNT_NANOS]
    priority: Annotated[int, msgspec.Meta(ge=0, le=100), fields.PRIORITY] = 50
    effective_from: Annotated[Instant | None, about("From when on usage may take from it; null for now.")] = None
    expires_at: Annotated[Instant | None, fields.EXPIRES_AT] = None
    models: Annotated[tuple[ModelId, ...], msgspec.Meta(max_length=100), fields.LOT_MODELS] = ()
    reference: Annotated[Reference | None, fields.CREDIT_REFERENCE] = None


class CreditRefund(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much unspent paid credit is paid back, in whole cents."""

    amount_nanos: Annotated[CreditNanos, fields.AMOUNT_NANOS]
