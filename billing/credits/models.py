"""The tables of credits: lots, and the entries that move them. Both are written once.

Each entry has the lot's balance after it, which a constraint keeps at 0 or above. A trigger refuses an entry that does
not continue the one before it, and another checks at commit that its ledger transfer moves the same amount.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from core.db import Instant


class CreditLot(SQLModel, table=True):
    """An amount of credit that was paid or given at once. ``reference`` names its cause and is unique for a tenant, so
    a cause that is reported twice grants once. Empty ``models`` stand for every model.
    """

    __tablename__ = "credit_lots"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "reference"),
        sa.Index("ix_credit_lots_expires_at", "expires_at"),
        sa.CheckConstraint("kind IN ('paid', 'promotional')", name="kind_known"),
        sa.CheckConstraint("amount_nanos > 0", name="amount_positive"),
        sa.CheckConstraint("kind = 'promotional' OR amount_nanos % 10000000 = 0", name="paid_in_cents"),
        sa.CheckConstraint("priority BETWEEN 0 AND 100", name="priority_in_range"),
        sa.CheckConstraint("expires_at > effective_from", name="has_a_time"),
        sa.CheckConstraint("length(reference) BETWEEN 1 AND 200", name="reference_bounded"),
    )

    id: str = Field(primary_key=True)
    tenant_id: str
    kind: str
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    priority: int
    effective_from: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    models: list[str] = Field(sa_type=ARRAY(sa.String))
    reference: str
    created_at: datetime = Field(sa_type=Instant)


class CreditEntry(SQLModel, table=True):
    """One movement of a lot. The first one, number 1, is the grant. A ``lapse`` below zero is what the lot lost at its
    expiry; one above zero gives back what usage of before the expiry, recorded later, needs. A ``return`` is the whole
    ``burn`` of an invoice that was voided, once.
    """

    __tablename__ = "credit_entries"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('grant', 'burn', 'return', 'lapse', 'refund', 'void')", name="kind_known"),
        sa.CheckConstraint("number > 0 AND (number = 1) = (kind = 'grant')", name="begins_with_the_grant"),
        sa.CheckConstraint("amount_nanos <> 0", name="moves_something"),
        sa.CheckConstraint(
            "kind = 'lapse' OR (amount_nanos > 0) = (kind IN ('grant', 'return'))", name="only_some_kinds_add"
        ),
        sa.CheckConstraint("balance_nanos >= 0", name="balance_not_negative"),
        sa.CheckConstraint(
            "(invoice_id IS NULL OR kind IN ('burn', 'return')) AND (invoice_id IS NOT NULL OR kind <> 'return')",
            name="invoice_fits_kind",
        ),
        sa.Index("ix_credit_entries_invoice_id", "invoice_id", postgresql_where=sa.text("invoice_id IS NOT NULL")),
        sa.Index(
            "uq_credit_entries_returned_once",
            "invoice_id",
            "lot_id",
            unique=True,
            postgresql_where=sa.text("kind = 'return'"),
        ),
    )

    lot_id: str = Field(primary_key=True, foreign_key="credit_lots.id")
    number: int = Field(primary_key=True)
    kind: str
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    balance_nanos: int = Field(sa_type=sa.BigInteger)
    invoice_id: str | None = None
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    created_at: datetime = Field(sa_type=Instant)
