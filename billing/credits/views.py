"""What other packages see of credits. Tables never leave this package."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal

import msgspec

CreditKind = Literal["paid", "promotional"]
LotStatus = Literal["scheduled", "active", "used", "expired"]


class CreditUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one lot pays of an invoice."""

    lot_id: str
    kind: CreditKind
    amount_nanos: int


class LotView(msgspec.Struct, frozen=True, kw_only=True):
    """One lot of credit. ``balance_nanos`` is what new usage may take: what is left after invoices and the usage that
    is not invoiced yet, and 0 once the lot has expired. Empty ``models`` stand for every model.
    """

    id: str
    tenant_id: str
    kind: CreditKind
    amount_nanos: int
    priority: int
    effective_from: datetime
    expires_at: datetime | None
    models: Sequence[str]
    reference: str
    status: LotStatus
    balance_nanos: int
    invoiced_nanos: int
    pending_nanos: int
    lapsed_nanos: int
    refunded_nanos: int
    voided_nanos: int
    created_at: datetime


class BurnedDay(msgspec.Struct, frozen=True, kw_only=True):
    """What the usage of one UTC day took of credit."""

    day: date
    amount_nanos: int


class CreditBalance(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's credit now. ``pending_nanos`` is what usage that is not invoiced yet will take, and
    ``uncovered_nanos`` the part of that usage that no lot covers. ``burn_down`` splits ``pending_nanos`` by day.
    """

    balance_nanos: int
    paid_nanos: int
    promotional_nanos: int
    pending_nanos: int
    uncovered_nanos: int
    lots: Sequence[LotView]
    burn_down: Sequence[BurnedDay]


class CreditEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One movement of a lot: positive adds to it. ``balance_nanos`` is the lot's balance in the ledger afterwards."""

    lot_id: str
    number: int
    kind: str
    amount_nanos: int
    balance_nanos: int
    invoice_id: str | None
    transfer_id: str
    created_at: datetime
