"""Tables of the pools room. Revisions are insert-only; which of them is in force is a field of the pool."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock


class PoolRow(SQLModel, table=True):
    """A named set of replicas with one revision in force; none before its first."""

    __tablename__ = "pools"
    __table_args__ = (
        CheckConstraint("replicas_min >= 0 AND replicas_min <= replicas_max", name="replicas_ordered"),
        CheckConstraint("ttft_target_ms > 0", name="ttft_target_positive"),
        CheckConstraint("itl_target_ms > 0", name="itl_target_positive"),
        CheckConstraint("tokens_min <= tokens_max", name="tokens_ordered"),
        ForeignKeyConstraint(["name", "revision"], ["pool_revisions.pool", "pool_revisions.number"], use_alter=True),
    )

    name: str = Field(primary_key=True, sa_type=Text)
    base_model: str = Field(foreign_key="base_models.id", sa_type=Text)
    rank_max: int = Field(sa_type=BigInteger)
    hardware: str = Field(sa_type=Text)
    replicas_min: int = Field(sa_type=BigInteger)
    replicas_max: int = Field(sa_type=BigInteger)
    revision: int | None = Field(default=None, sa_type=BigInteger)
    ttft_target_ms: int | None = Field(default=None, sa_type=BigInteger)
    itl_target_ms: int | None = Field(default=None, sa_type=BigInteger)
    service_classes: list[str] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    tenants: list[str] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    tokens_min: int | None = Field(default=None, sa_type=BigInteger)
    tokens_max: int | None = Field(default=None, sa_type=BigInteger)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PoolRevisionRow(SQLModel, table=True):
    """A ``core.contracts.pool_revisions.PoolRevision`` of a pool, by number and by digest."""

    __tablename__ = "pool_revisions"
    __table_args__ = (UniqueConstraint("pool", "digest"), CheckConstraint("number > 0", name="number_positive"))

    pool: str = Field(primary_key=True, foreign_key="pools.name", sa_type=Text)
    number: int = Field(primary_key=True, sa_type=BigInteger)
    digest: str = Field(sa_type=Text)
    weights: str = Field(sa_type=Text)
    engine: str = Field(sa_type=Text)
    settings: dict[str, Any] = Field(sa_type=JSONB)
    created_by: str = Field(sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PoolDecision(SQLModel, table=True):
    """A change of the number of replicas that a pool should have, with what it was computed from. The newest row holds
    the number; old rows are deleted.
    """

    __tablename__ = "pool_decisions"
    __table_args__ = (Index("ix_pool_decisions_pool_id", "pool", "id"),)

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    pool: str = Field(foreign_key="pools.name", sa_type=Text)
    replicas_before: int = Field(sa_type=BigInteger)
    replicas: int = Field(sa_type=BigInteger)
    reason: str = Field(sa_type=Text)
    inputs: dict[str, Any] = Field(sa_type=JSONB)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PoolNeed(SQLModel, table=True):
    """The mean of the replicas that the load of a pool asked for in one slot of ``forecast``."""

    __tablename__ = "pool_needs"

    pool: str = Field(primary_key=True, foreign_key="pools.name", sa_type=Text)
    slot: int = Field(primary_key=True, sa_type=BigInteger)
    replicas: float = Field(sa_type=Double)
