"""The tables of the price book: price versions of plans and plan assignments of tenants. Rows are written once, and a
trigger refuses those that would begin in the past.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class PriceVersion(SQLModel, table=True):
    """What one plan charges from an instant on, until a later version of the same plan takes over. ``card`` is a
    ``billing.prices.card.PriceCard``. The versions of a tenant's own have the tenant's id as their ``plan_id``.
    """

    __tablename__ = "price_versions"
    __table_args__ = (sa.UniqueConstraint("plan_id", "effective_from"),)

    id: str = Field(primary_key=True)
    plan_id: str
    card: dict[str, Any] = Field(sa_type=JSONB)
    effective_from: datetime = Field(sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)


class WithdrawnPriceVersion(SQLModel, table=True):
    """A price version that was withdrawn before it began, and never holds."""

    __tablename__ = "withdrawn_price_versions"

    price_version_id: str = Field(primary_key=True, foreign_key="price_versions.id")
    withdrawn_at: datetime = Field(sa_type=Instant)


class PlanAssignment(SQLModel, table=True):
    """Which plan prices a tenant's usage from an instant on, until a later assignment of the same tenant. Of two from
    the same instant on, the one that was made last holds.
    """

    __tablename__ = "plan_assignments"

    tenant_id: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    plan_id: str
    created_at: datetime = Field(primary_key=True, sa_type=Instant)


class PriceOverride(SQLModel, table=True):
    """A price version of a tenant's own, which replaces those of its plan in ``[effective_from, expires_at)``. Without
    a version, the plan's prices hold again. Of overrides that overlap, the one that was made last holds.
    """

    __tablename__ = "price_overrides"
    __table_args__ = (sa.CheckConstraint("expires_at > effective_from", name="expires_later"),)

    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    price_version_id: str | None = Field(default=None, foreign_key="price_versions.id")
    effective_from: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
