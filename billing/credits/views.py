"""What other packages see of credits. Tables never leave this package."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Literal

import msgspec

from core import fields
from core.fields import about

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

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    kind: Annotated[CreditKind, fields.LOT_KIND]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    priority: Annotated[int, fields.PRIORITY]
    effective_from: Annotated[datetime, about("From when on usage may take from it.")]
    expires_at: Annotated[datetime | None, fields.EXPIRES_AT]
    models: Annotated[Sequence[str], fields.LOT_MODELS]
    reference: Annotated[str, fields.CREDIT_REFERENCE]
    status: Annotated[LotStatus, about("scheduled, active, used or expired.")]
    balance_nanos: Annotated[int, fields.BALANCE_NANOS]
    invoiced_nanos: Annotated[int, fields.INVOICED_NANOS]
    pending_nanos: Annotated[int, fields.PENDING_NANOS]
    lapsed_nanos: Annotated[int, about("Nanodollars that were unspent at its expiry.")]
    refunded_nanos: Annotated[int, about("Nanodollars that were paid back.")]
    voided_nanos: Annotated[int, about("Nanodollars that were taken back unspent.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class BurnedDay(msgspec.Struct, frozen=True, kw_only=True):
    """What the usage of one UTC day took of credit."""

    day: Annotated[date, about("Day, in UTC.")]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]


class CreditBalance(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's credit now, with the lots that usage may still take from, in the order in which they burn.
    ``burn_down`` splits ``pending_nanos``, what usage that is not invoiced yet will take, by UTC day.
    """

    balance_nanos: Annotated[int, fields.BALANCE_NANOS]
    paid_nanos: Annotated[int, about("Credit left that was paid for, in nanodollars.")]
    promotional_nanos: Annotated[int, about("Credit left that was given, in nanodollars.")]
    pending_nanos: Annotated[int, fields.PENDING_NANOS]
    uncovered_nanos: Annotated[int, about("Nanodollars of uninvoiced usage that no credit pays.")]
    lots: Annotated[Sequence[LotView], about("Lots of credit, in the order in which they burn.")]
    burn_down: Annotated[Sequence[BurnedDay], about("What the uninvoiced usage of each UTC day took of the credit.")]


class CreditEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One movement of a lot: positive adds to it. ``balance_nanos`` is the lot's balance in the ledger afterwards."""

    lot_id: Annotated[str, fields.LOT_ID]
    number: Annotated[int, fields.NUMBER_IN_ORDER]
    kind: Annotated[str, about("grant, burn, lapse, refund or void.")]
    amount_nanos: Annotated[int, about("Nanodollars that it adds to the lot; negative where it takes away.")]
    balance_nanos: Annotated[int, fields.BALANCE_NANOS]
    invoice_id: Annotated[str | None, fields.INVOICE_ID]
    transfer_id: Annotated[str, fields.TRANSFER_ID]
    created_at: Annotated[datetime, fields.CREATED_AT]
