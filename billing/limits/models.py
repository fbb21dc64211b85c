"""The tables of spending: how a tenant pays, its own limits, and the ceiling that follows from them.

Terms and limits are settings and change. A ceiling is derived and can be computed again at any time.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from core.db import Instant


class SpendingSettings(SQLModel, table=True):
    """How one tenant pays. A tenant without a row pays by invoice and has no credit limit."""

    __tablename__ = "spending_terms"
    __table_args__ = (
        sa.CheckConstraint("mode IN ('prepaid', 'postpaid')", name="mode_known"),
        sa.CheckConstraint("credit_limit_nanos >= 0", name="credit_limit_not_negative"),
        sa.CheckConstraint("invoice_threshold_nanos > 0", name="invoice_threshold_positive"),
        sa.CheckConstraint("cardinality(balance_floors_nanos) <= 10", name="few_floors"),
        sa.CheckConstraint(
            "(top_up_cents IS NULL) = (top_up_floor_nanos IS NULL)"
            " AND (top_up_cents IS NULL) = (top_up_month_cents_max IS NULL)",
            name="top_up_is_whole",
        ),
        sa.CheckConstraint(
            "top_up_cents > 0 AND top_up_floor_nanos >= 0 AND top_up_month_cents_max >= top_up_cents",
            name="top_up_possible",
        ),
    )

    tenant_id: str = Field(primary_key=True)
    mode: str
    credit_limit_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)
    invoice_threshold_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)
    balance_floors_nanos: list[int] = Field(sa_type=ARRAY(sa.BigInteger))
    top_up_cents: int | None = Field(default=None, sa_type=sa.BigInteger)
    top_up_floor_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)
    top_up_month_cents_max: int | None = Field(default=None, sa_type=sa.BigInteger)
    updated_at: datetime = Field(sa_type=Instant)


class SpendCeiling(SQLModel, table=True):
    """The largest total that a tenant may have been charged, by its credit and its terms. None: no ceiling.

    ``revision`` counts the writes; ``recheck_at`` is when a lot begins or ends next. ``receivable_entries`` is how many
    entries the tenant's receivable had, and ``balance_nanos`` what its credit was. ``to_publish`` is set until the
    control plane has the ceiling.
    """

    __tablename__ = "spend_ceilings"
    __table_args__ = (
        sa.CheckConstraint("ceiling_nanos >= 0", name="ceiling_not_negative"),
        sa.Index("ix_spend_ceilings_to_publish", "tenant_id", postgresql_where=sa.text("to_publish")),
        sa.Index("ix_spend_ceilings_recheck_at", "recheck_at"),
    )

    tenant_id: str = Field(primary_key=True)
    revision: int = Field(sa_type=sa.BigInteger)
    ceiling_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)
    balance_nanos: int = Field(sa_type=sa.BigInteger)
    unbilled_nanos: int = Field(sa_type=sa.BigInteger)
    receivable_nanos: int = Field(sa_type=sa.BigInteger)
    receivable_entries: int = Field(sa_type=sa.BigInteger)
    recheck_at: datetime | None = Field(default=None, sa_type=Instant)
    to_publish: bool
    computed_at: datetime = Field(sa_type=Instant)


class SpendLimit(SQLModel, table=True):
    """A hard limit that the tenant or an admin set: on everything, one key or one adapter, in each day or month of the
    tenant's time zone. ``subject_id`` is empty for the whole tenant. ``raised_at_nanos`` was spent in the window of
    ``updated_at`` when the limit was raised: the thresholds up to there were passed before.
    """

    __tablename__ = "spend_limits"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "scope", "subject_id", "window_kind"),
        sa.CheckConstraint("scope IN ('tenant', 'key', 'adapter')", name="scope_known"),
        sa.CheckConstraint("(subject_id = '') = (scope = 'tenant')", name="subject_fits_scope"),
        sa.CheckConstraint("window_kind IN ('day', 'month')", name="window_known"),
        sa.CheckConstraint("amount_nanos >= 0", name="amount_not_negative"),
    )

    id: str = Field(primary_key=True)
    tenant_id: str
    scope: str
    subject_id: str
    window_kind: str
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)
    updated_at: datetime = Field(sa_type=Instant)
    raised_at_nanos: int = Field(default=0, sa_type=sa.BigInteger, sa_column_kwargs={"server_default": sa.text("0")})
