"""The table of the groups room."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock


class ModelGroup(SQLModel, table=True):
    """A group of models. ``owner`` is the tenant's id; "" for a group of the platform."""

    __tablename__ = "model_groups"

    owner: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    rule: str = Field(sa_type=Text)
    members: list[dict[str, Any]] = Field(sa_type=JSONB)
    threshold_percent: int = Field(sa_type=BigInteger)
    patience_ms: int = Field(sa_type=BigInteger)
    priority_tier_max: int = Field(sa_type=BigInteger)
    escalations_percent_max: int = Field(sa_type=BigInteger)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
