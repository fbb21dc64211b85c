"""The tables of metered resources: what tenants used by the hour, which hours are metered, and what replicas served.

Rows are written once. A meter writes the rows of an hour and the hour itself in one transaction, so an hour is there as
a whole or not at all.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from core.db import Instant

_KINDS = "kind IN ('adapter_storage', 'pinned_slots', 'cold_loads')"


class ResourceHour(SQLModel, table=True):
    """What a tenant used of one resource for one adapter in one UTC hour. ``units`` are byte-seconds of storage,
    slot-milliseconds of pins, or loads. ``rank_class`` 0 stands for none.

    ``counted_at`` decides the billing period: the hour's last microsecond, or, when that was invoiced already as the
    hour was metered, the beginning of the period that was open then.
    """

    __tablename__ = "resource_hours"
    __table_args__ = (
        sa.CheckConstraint(_KINDS, name="kind_known"),
        sa.CheckConstraint("units > 0", name="counts_something"),
        sa.CheckConstraint("hour = date_trunc('hour', hour, 'UTC')", name="hour_is_whole"),
        sa.CheckConstraint("counted_at >= hour", name="counted_later"),
        sa.Index("ix_resource_hours_tenant_id_counted_at", "tenant_id", "counted_at"),
        sa.Index("ix_resource_hours_kind_hour", "kind", "hour"),
    )

    tenant_id: str = Field(primary_key=True)
    hour: datetime = Field(primary_key=True, sa_type=Instant)
    kind: str = Field(primary_key=True)
    adapter_id: str = Field(primary_key=True)
    rank_class: int = Field(primary_key=True)
    base_model: str
    units: int = Field(sa_type=sa.BigInteger)
    counted_at: datetime = Field(sa_type=Instant)


class MeteredHour(SQLModel, table=True):
    """An hour whose use of one kind of resource is written. The database refuses further rows of it."""

    __tablename__ = "metered_hours"
    __table_args__ = (
        sa.CheckConstraint(_KINDS, name="kind_known"),
        sa.CheckConstraint("hour = date_trunc('hour', hour, 'UTC')", name="hour_is_whole"),
        sa.CheckConstraint("created_at >= hour + interval '1 hour'", name="hour_has_ended"),
    )

    kind: str = Field(primary_key=True)
    hour: datetime = Field(primary_key=True, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)


class ReplicaRevision(SQLModel, table=True):
    """The first request for a revision on a replica that was recorded, and the tier in which the adapter was then."""

    __tablename__ = "replica_revisions"

    replica_id: str = Field(primary_key=True)
    revision_id: str = Field(primary_key=True)
    request_id: str
    adapter_tier: str | None = None
    hour: datetime = Field(sa_type=Instant)
