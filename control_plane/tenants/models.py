"""Table of the tenants room: each customer with its plan and status."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import CheckConstraint, DateTime, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock
from core.ids import new_id

HAS_OVERRIDE_TERMS: Final = text("limit_override_terms <> '{}'::jsonb")
"""Few tenants have any, and the worker looks for them twice a second: an index holds them alone."""


class Tenant(SQLModel, table=True):
    """One customer. ``limit_overrides`` replace single limits of the plan for this tenant only. Those with a reason or
    an end have them in ``limit_override_terms``.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("status IN ('active', 'suspended', 'closed')", name="status_known"),
        Index("ix_tenants_override_terms", "id", postgresql_where=HAS_OVERRIDE_TERMS),
    )

    id: str = Field(default_factory=lambda: new_id("tn"), primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    plan_id: str = Field(foreign_key="plans.id", index=True, sa_type=Text)
    status: str = Field(default="active", sa_type=Text)
    limit_overrides: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)
    limit_override_terms: dict[str, Any] = Field(
        default_factory=dict, sa_type=JSONB, sa_column_kwargs={"server_default": text("'{}'::jsonb")}
    )
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
