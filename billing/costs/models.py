"""The tables of unit economics: what replicas reported, what they cost by the hour, and whose cost it was. Each row is
written once.

Triggers in the migration refuse every change but the deletion of old windows, and check that the rows of an hour add
up to its cost.
"""

from datetime import date, datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from core.db import Instant

Big = sa.BigInteger

_GROUP = "base_model <> '' AND rank_max > 0"
_KINDS = (
    "'requests', 'aborted_prefill', 'adapter_load', 'pinned', 'platform', 'unclaimed', 'idle', 'starting', "
    "'draining', 'lost'"
)


class ReplicaCostWindow(SQLModel, table=True):
    """One window as a replica's agent reported it (``core.contracts.costs``). It is deleted when it is old enough."""

    __tablename__ = "replica_cost_windows"
    __table_args__ = (
        sa.CheckConstraint("start_ms < end_ms", name="window_has_length"),
        sa.CheckConstraint("state IN ('starting', 'ready', 'draining', 'unhealthy')", name="state_known"),
        sa.CheckConstraint(
            "busy_ms >= 0 AND stall_ms >= 0 AND steps >= 0 AND prefill_tokens >= 0 AND decode_tokens >= 0"
            " AND context_tokens >= 0 AND sequence_steps >= 0 AND adapter_steps >= 0"
            " AND probe_prefill_tokens >= 0 AND probe_decode_tokens >= 0",
            name="counts_not_negative",
        ),
        sa.CheckConstraint(_GROUP, name="group_named"),
        sa.Index("ix_replica_cost_windows_replica_id_start_ms", "replica_id", "start_ms"),
        sa.Index("ix_replica_cost_windows_start_ms", "start_ms"),
    )

    replica_id: str = Field(primary_key=True)
    boot_id: str = Field(primary_key=True)
    sequence: int = Field(primary_key=True, sa_type=Big)
    base_model: str
    rank_max: int
    pool: str
    engine: str
    device: str
    state: str
    start_ms: int = Field(sa_type=Big)
    end_ms: int = Field(sa_type=Big)
    busy_ms: int = Field(sa_type=Big)
    stall_ms: int = Field(sa_type=Big)
    steps: int = Field(sa_type=Big)
    prefill_tokens: int = Field(sa_type=Big)
    decode_tokens: int = Field(sa_type=Big)
    context_tokens: int = Field(sa_type=Big)
    sequence_steps: int = Field(sa_type=Big)
    adapter_steps: int = Field(sa_type=Big)
    probe_prefill_tokens: int = Field(sa_type=Big)
    probe_decode_tokens: int = Field(sa_type=Big)
    final: bool


class ReplicaRateRow(SQLModel, table=True):
    """What one replica of a pool, or with ``pool`` "" of a placement group, costs from an instant on, until a later row
    of the same.
    """

    __tablename__ = "replica_rates"
    __table_args__ = (
        sa.CheckConstraint("nanos_per_hour >= 0 AND slot_nanos_per_hour >= 0", name="rates_not_negative"),
        sa.CheckConstraint(_GROUP, name="group_named"),
    )

    base_model: str = Field(primary_key=True)
    rank_max: int = Field(primary_key=True)
    pool: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    nanos_per_hour: int = Field(sa_type=Big)
    slot_nanos_per_hour: int = Field(sa_type=Big)
    created_at: datetime = Field(sa_type=Instant)


class OutsidePriceRow(SQLModel, table=True):
    """What a provider charged for a million tokens of a model on a day, in billionths of its currency."""

    __tablename__ = "outside_prices"
    __table_args__ = (
        sa.CheckConstraint("input_nanos_per_mtok >= 0 AND output_nanos_per_mtok >= 0", name="prices_not_negative"),
        sa.CheckConstraint("currency ~ '^[a-z]{3}$'", name="currency_is_a_code"),
    )

    base_model: str = Field(primary_key=True)
    provider: str = Field(primary_key=True)
    as_of: date = Field(primary_key=True)
    currency: str = Field(primary_key=True)
    input_nanos_per_mtok: int = Field(sa_type=Big)
    output_nanos_per_mtok: int = Field(sa_type=Big)
    source: str
    created_at: datetime = Field(sa_type=Instant)


class CostFunctionRow(SQLModel, table=True):
    """A fitted cost function of one kind of replica: its weights, its error on held-out windows, and what it was fitted
    to.
    """

    __tablename__ = "cost_functions"
    __table_args__ = (
        sa.CheckConstraint(
            "fixed_ps >= 0 AND prefill_token_ps >= 0 AND decode_token_ps >= 0 AND context_token_ps >= 0"
            " AND adapter_ps >= 0",
            name="weights_not_negative",
        ),
        sa.CheckConstraint(
            "observations > 0 AND held_out > 0 AND median_error_ppm >= 0 AND ratio_ppm >= 0", name="quality_possible"
        ),
        sa.CheckConstraint("measured_from_ms < measured_to_ms", name="measured_for_some_time"),
        sa.Index("ix_cost_functions_kind", "base_model", "rank_max", "device", "engine", "created_at"),
    )

    id: str = Field(primary_key=True)
    base_model: str
    rank_max: int
    engine: str
    device: str
    fixed_ps: int = Field(sa_type=Big)
    prefill_token_ps: int = Field(sa_type=Big)
    decode_token_ps: int = Field(sa_type=Big)
    context_token_ps: int = Field(sa_type=Big)
    adapter_ps: int = Field(sa_type=Big)
    observations: int
    held_out: int
    median_error_ppm: int = Field(sa_type=Big)
    ratio_ppm: int = Field(sa_type=Big)
    measured_from_ms: int = Field(sa_type=Big)
    measured_to_ms: int = Field(sa_type=Big)
    created_at: datetime = Field(sa_type=Instant)


class CostHour(SQLModel, table=True):
    """The cost of one replica in one UTC hour. ``charge`` is rate × time in nanodollars per hour × milliseconds, and
    ``carry`` the part of it below one nanodollar that the replica's next hour begins with.
    """

    __tablename__ = "cost_hours"
    __table_args__ = (
        sa.CheckConstraint("mod(hour_ms, 3600000) = 0", name="hour_is_whole"),
        sa.CheckConstraint(
            "charge + carry_in = total_nanos::numeric * 3600000 + carry AND carry >= 0 AND carry < 3600000"
            " AND carry_in >= 0 AND carry_in < 3600000",
            name="total_is_rate_times_time",
        ),
        sa.CheckConstraint("paid_ms >= 0 AND busy_ms >= 0 AND busy_ms <= paid_ms", name="busy_is_paid"),
        sa.Index("ix_cost_hours_hour_ms", "hour_ms"),
    )

    replica_id: str = Field(primary_key=True)
    hour_ms: int = Field(primary_key=True, sa_type=Big)
    base_model: str
    rank_max: int
    pool: str
    cost_function_id: str | None = Field(default=None, foreign_key="cost_functions.id")
    charge: int = Field(sa_type=sa.Numeric(38, 0))
    carry_in: int
    carry: int
    total_nanos: int = Field(sa_type=Big)
    paid_ms: int = Field(sa_type=Big)
    busy_ms: int = Field(sa_type=Big)
    ratio_ppm: int | None = Field(default=None, sa_type=Big)
    created_at: datetime = Field(sa_type=Instant)


class CostRow(SQLModel, table=True):
    """Whose cost a part of an hour was, and why. Without a tenant it is the platform's."""

    __tablename__ = "cost_rows"
    __table_args__ = (
        sa.ForeignKeyConstraint(["replica_id", "hour_ms"], ["cost_hours.replica_id", "cost_hours.hour_ms"]),
        sa.CheckConstraint("nanos > 0", name="costs_something"),
        sa.CheckConstraint(f"kind IN ({_KINDS})", name="kind_known"),
        sa.CheckConstraint(
            "(tenant_id <> '') = (kind IN ('requests', 'aborted_prefill', 'adapter_load', 'pinned'))",
            name="owner_fits_kind",
        ),
        sa.Index("ix_cost_rows_hour_ms", "hour_ms"),
    )

    replica_id: str = Field(primary_key=True)
    hour_ms: int = Field(primary_key=True, sa_type=Big)
    tenant_id: str = Field(primary_key=True)
    adapter_id: str = Field(primary_key=True)
    plan_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    nanos: int = Field(sa_type=Big)
