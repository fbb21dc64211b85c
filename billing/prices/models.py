"""The tables of the price book: price versions of plans and plan assignments of tenants. Rows are written once, and a
trigger refuses those that would begin in the past.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from billing.models import Instant


class PriceVersion(SQLModel, table=True):
    """What one plan charges from an instant on, until a later version of the same plan takes over."""

    __tablename__ = "price_versions"
    __table_args__ = (
        sa.UniqueConstraint("plan_id", "effective_from"),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_page_second_nanos >= 0",
            name="prices_not_negative",
        ),
    )

    id: str = Field(primary_key=True)
    plan_id: str
    input_nanos: int = Field(sa_type=sa.BigInteger)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger)
    output_nanos: int = Field(sa_type=sa.BigInteger)
    kv_page_second_nanos: int = Field(sa_type=sa.BigInteger)
    effective_from: datetime = Field(sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)


class PlanAssignment(SQLModel, table=True):
    """Which plan prices a tenant's usage from an instant on, until a later assignment of the same tenant."""

    __tablename__ = "plan_assignments"

    tenant_id: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    plan_id: str
    created_at: datetime = Field(sa_type=Instant)
