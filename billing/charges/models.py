"""The tables of a period's charge: adjustments, and what a period leaves to the next one."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class UsageAdjustment(SQLModel, table=True):
    """The difference between what a period costs and what was posted for it before. Written once. ``usage_nanos`` is
    the part that counts against limits on spending: usage and its tiers, not fees and discounts.

    It belongs to the billing period that holds ``period_start``.
    """

    __tablename__ = "usage_adjustments"
    __table_args__ = (
        sa.CheckConstraint("amount_nanos <> 0", name="adjusts_something"),
        sa.Index("ix_usage_adjustments_tenant_id_period_start", "tenant_id", "period_start"),
    )

    id: str = Field(primary_key=True)
    tenant_id: str
    period_start: datetime = Field(sa_type=Instant)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    usage_nanos: int = Field(sa_type=sa.BigInteger)
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    created_at: datetime = Field(sa_type=Instant)


class StoredPeriodState(SQLModel, table=True):
    """What a closed period left to the next one (``billing.charges.state.PeriodState``). Written once, and only
    where the next invoice may depend on it.
    """

    __tablename__ = "period_states"

    tenant_id: str = Field(primary_key=True)
    period_end: datetime = Field(primary_key=True, sa_type=Instant)
    state: dict[str, Any] = Field(sa_type=JSONB)
    created_at: datetime = Field(sa_type=Instant)
