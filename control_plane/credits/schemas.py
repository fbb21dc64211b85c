"""Wire types of the credits room. Answers are ``billing.credits.views``."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from billing.credits.views import BurnedDay, LotView
from billing.settings import CREDIT_NANOS_MAX

CreditNanos = Annotated[int, msgspec.Meta(ge=1, le=CREDIT_NANOS_MAX)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
ModelId = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+(?!\n)$")]
Reference = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+(?!\n)$")]


class NewCredit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credit to grant. ``paid`` credit was paid for outside of Tenora and comes in whole cents; ``promotional`` credit
    is a gift and lowers the taxable amount. Without ``effective_from`` it begins now, without ``expires_at`` it never
    ends, without ``models`` it pays for everything. One ``reference`` grants once.
    """

    kind: Literal["paid", "promotional"]
    amount_nanos: CreditNanos
    priority: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    effective_from: Instant | None = None
    expires_at: Instant | None = None
    models: Annotated[tuple[ModelId, ...], msgspec.Meta(max_length=100)] = ()
    reference: Reference | None = None


class CreditRefund(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much unspent paid credit is paid back, in whole cents."""

    amount_nanos: CreditNanos


class OwnCredit(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant's credit now, with the lots that usage may still take from, in the order in which they burn, and what
    the uninvoiced usage of each UTC day takes of them.
    """

    balance_nanos: int
    paid_nanos: int
    promotional_nanos: int
    pending_nanos: int
    uncovered_nanos: int
    lots: Sequence[LotView]
    burn_down: Sequence[BurnedDay]
