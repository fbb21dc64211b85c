"""Tables of the plans room: a plan is a name, and its versions hold its limits and prices.

A version never changes; of those that have begun, the latest applies to every tenant on the plan. ``billing`` rates
usage.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, DateTime, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock
from core.ids import new_id


class Plan(SQLModel, table=True):
    """A plan that tenants can be assigned to."""

    __tablename__ = "plans"

    id: str = Field(default_factory=lambda: new_id("pl"), primary_key=True, sa_type=Text)
    name: str = Field(unique=True, sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PlanVersion(SQLModel, table=True):
    """The limits (``core.contracts.grants.Limits``) and prices
    (``billing.prices.card.PriceCard``) of a plan from an instant on.
    """

    __tablename__ = "plan_versions"
    __table_args__ = (UniqueConstraint("plan_id", "number"), CheckConstraint("number > 0", name="number_positive"))

    id: str = Field(default_factory=lambda: new_id("pv"), primary_key=True, sa_type=Text)
    plan_id: str = Field(foreign_key="plans.id", sa_type=Text)
    number: int
    limits: dict[str, Any] = Field(sa_type=JSONB)
    prices: dict[str, Any] = Field(sa_type=JSONB)
    effective_from: datetime = Field(sa_type=DateTime(timezone=True))
    price_version_id: str = Field(sa_type=Text, description="The price version in the billing room's price book.")
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PlanDraft(SQLModel, table=True):
    """Limits and prices that are not published yet. They were written on top of the version ``base_version`` and can be
    published only while it is the newest. A published draft never changes.
    """

    __tablename__ = "plan_drafts"

    id: str = Field(default_factory=lambda: new_id("pd"), primary_key=True, sa_type=Text)
    plan_id: str = Field(foreign_key="plans.id", index=True, sa_type=Text)
    base_version: int
    limits: dict[str, Any] = Field(sa_type=JSONB)
    prices: dict[str, Any] = Field(sa_type=JSONB)
    created_by: str = Field(sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    published_version_id: str | None = Field(default=None, foreign_key="plan_versions.id", sa_type=Text)
