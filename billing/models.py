"""The tables of the double-entry ledger. Rows are written once; ``billing.ledger`` is their only writer.

A transfer's entries are inserted before the transfer itself, in one transaction. Triggers refuse an entry for a
transfer that exists, and check at commit that each transfer is whole, so nothing can be added to an old one.
"""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from core.db import Instant

_TENANT_KINDS: Final = "'usage_unbilled', 'receivable', 'customer_balance', 'credits_paid', 'credits_promotional'"
_PLATFORM_KINDS: Final = "'revenue', 'rounding', 'cash', 'promotions', 'breakage', 'tax_payable', 'bad_debt'"
_TRANSFER_KINDS: Final = (
    "'usage', 'adjustment', 'invoice', 'amendment', 'credit_note', 'payment', 'refund', 'void', 'write_off',"
    " 'recovery', 'credit_grant', 'credit_burn', 'credit_lapse', 'balance'"
)


class LedgerAccount(SQLModel, table=True):
    """Where value is held. Accounts with a tenant exist once per tenant; the others belong to the platform."""

    __tablename__ = "accounts"
    __table_args__ = (
        sa.UniqueConstraint("kind", "tenant_id", postgresql_nulls_not_distinct=True),
        sa.CheckConstraint(f"kind IN ({_TENANT_KINDS}, {_PLATFORM_KINDS})", name="kind_known"),
        sa.CheckConstraint(f"(tenant_id IS NULL) = (kind IN ({_PLATFORM_KINDS}))", name="owner_fits_kind"),
    )

    id: str = Field(primary_key=True)
    kind: str
    tenant_id: str | None = None


class LedgerTransfer(SQLModel, table=True):
    """One movement of value. Its cause names it: usage records, an adjustment, a payment and so on; an invoice is named
    by the transfer that finalizes it.
    """

    __tablename__ = "transfers"
    __table_args__ = (
        sa.CheckConstraint(f"kind IN ({_TRANSFER_KINDS})", name="kind_known"),
        sa.CheckConstraint("(kind = 'invoice') = (invoice_id IS NOT NULL)", name="cause_fits_kind"),
        sa.Index(
            "ix_transfers_revenue_created_at",
            "created_at",
            postgresql_where=sa.text("kind IN ('adjustment', 'credit_note', 'void')"),
        ),
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
