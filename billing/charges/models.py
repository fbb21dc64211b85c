"""The table of adjustments: what tiers changed after usage was recorded at the highest price."""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from billing.models import Instant


class UsageAdjustment(SQLModel, table=True):
    """The difference between what a period's usage costs and what was posted for it before. Written once.

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
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    created_at: datetime = Field(sa_type=Instant)
