"""The tables of the double-entry ledger. Rows are written once; ``billing.ledger`` is their only writer.

A transfer's entries are inserted before the transfer itself, in one transaction. Triggers refuse an entry for a
transfer that exists, and check at commit that each transfer is whole, so nothing can be added to an old one.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

Instant = sa.DateTime(timezone=True)


class LedgerAccount(SQLModel, table=True):
    """Where value is held. ``revenue`` and ``rounding`` belong to the platform; the others exist once per tenant."""

    __tablename__ = "accounts"
    __table_args__ = (
        sa.UniqueConstraint("kind", "tenant_id", postgresql_nulls_not_distinct=True),
        sa.CheckConstraint("kind IN ('usage_unbilled', 'receivable', 'revenue', 'rounding')", name="kind_known"),
        sa.CheckConstraint("(tenant_id IS NULL) = (kind IN ('revenue', 'rounding'))", name="owner_fits_kind"),
    )

    id: str = Field(primary_key=True)
    kind: str
    tenant_id: str | None = None


class LedgerTransfer(SQLModel, table=True):
    """One movement of value: of the usage records that one transaction recorded, of an adjustment of what usage of a
    period costs, or of one invoice.
    """

    __tablename__ = "transfers"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('usage', 'adjustment', 'invoice')", name="kind_known"),
        sa.CheckConstraint("(kind = 'invoice') = (invoice_id IS NOT NULL)", name="cause_fits_kind"),
    )

    id: str = Field(primary_key=True)
    kind: str
    invoice_id: str | None = Field(default=None, unique=True, foreign_key="invoices.id")
    created_at: datetime = Field(sa_type=Instant)


class LedgerEntry(SQLModel, table=True):
    """One leg of a transfer: positive is a debit, negative a credit, and the legs of a transfer sum to zero."""

    __tablename__ = "entries"
    __table_args__ = (
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], deferrable=True, initially="DEFERRED"),
    )

    transfer_id: str = Field(primary_key=True)
    account_id: str = Field(primary_key=True, foreign_key="accounts.id", index=True)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
