"""The tables of usage: records of requests, and their sums by hour, day and month, written in the same transaction.

Records are never changed; an amendment is a row of its own. Sums can be computed again from both. Reports and closes
read the sums, and records only for single minutes, revisions and the parts of an hour at both ends. Text ids name
tenants, keys and adapters of the control plane: no foreign key crosses that line.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import orm
from sqlmodel import Field, SQLModel

from core.db import Instant

_COUNT = {"server_default": sa.text("0")}
_DEFAULT_TIER = {"server_default": "default"}


class UsageRecord(SQLModel, table=True):
    """What one request used and what it costs. For an estimated request, the difference to the exact event is a second
    record whose id ends in ``:rest``.

    ``late_from`` is None for usage that belongs to the period in which it settled. Usage that arrives after its period
    was closed belongs to the period that begins at ``late_from``. The table is partitioned by the month of the request
    id, which is time-ordered, so an id is unique over all partitions.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        sa.ForeignKeyConstraint(["transfer_id"], ["transfers.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens",
            name="quantities_possible",
        ),
        sa.CheckConstraint(
            "aborted_prefill_tokens BETWEEN 0 AND input_tokens", name="aborted_prefill_is_part_of_input"
        ),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0"
            " AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos",
            name="amount_is_sum_of_parts",
        ),
        sa.CheckConstraint(
            "first_token_ms >= 0 AND duration_ms >= 0 AND adapter_load_ms >= 0 AND stall_ms >= 0",
            name="durations_possible",
        ),
        sa.CheckConstraint("NOT estimated OR outcome = 'gateway_gone'", name="estimate_has_cause"),
        sa.CheckConstraint("adapter_tier IN ('slot', 'memory', 'disk', 'store')", name="tier_known"),
        sa.CheckConstraint("late_from > settled_at", name="late_is_later"),
        sa.CheckConstraint("service_tier IN ('default', 'flex')", name="service_tier_known"),
        sa.CheckConstraint("service_class IN ('near_real_time', 'interactive', 'batch')", name="service_class_known"),
        sa.Index("ix_usage_records_tenant_id_settled_at", "tenant_id", "settled_at"),
        sa.Index(
            "ix_usage_records_tenant_id_late_from",
            "tenant_id",
            "late_from",
            postgresql_where=sa.text("late_from IS NOT NULL"),
        ),
        sa.Index("ix_usage_records_transfer_id", "transfer_id"),
        {"postgresql_partition_by": "RANGE (request_id)"},
    )

    request_id: str = Field(primary_key=True, sa_type=sa.String(collation="C"))
    tenant_id: str
    key_id: str
    base_model: str
    adapter_id: str | None = None
    revision_id: str | None = None
    rank_class: int | None = None
    replica_id: str
    outcome: str
    started_at: datetime = Field(sa_type=Instant)
    settled_at: datetime = Field(sa_type=Instant)
    late_from: datetime | None = Field(default=None, sa_type=Instant)
    input_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int = Field(sa_type=sa.BigInteger)
    kv_measured: bool = Field(default=False, sa_column_kwargs={"server_default": sa.false()})
    first_token_ms: int | None = Field(default=None, sa_type=sa.BigInteger)
    duration_ms: int = Field(sa_type=sa.BigInteger)
    adapter_tier: str | None = None
    adapter_load_ms: int = Field(sa_type=sa.BigInteger)
    stall_ms: int = Field(sa_type=sa.BigInteger)
    estimated: bool
    price_version_id: str = Field(foreign_key="price_versions.id")
    input_nanos: int = Field(sa_type=sa.BigInteger)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger)
    output_nanos: int = Field(sa_type=sa.BigInteger)
    kv_nanos: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    transfer_id: str
    service_tier: str = Field(default="default", sa_column_kwargs=_DEFAULT_TIER)
    service_class: str = Field(default="interactive", sa_column_kwargs={"server_default": "interactive"})
    gpu_us: int = Field(default=0, sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)


UsageNow = orm.aliased(
    UsageRecord,
    sa.table("usage_now", *(sa.column(each.name, each.type) for each in sa.inspect(UsageRecord).columns)),
    adapt_on_names=True,
)
"""The view of what each request is charged for now: amended records with their new quantities, voided ones not at all.
"""


class UsageHour(SQLModel, table=True):
    """The sums of the records of one hour (UTC, by ``settled_at``) with the same owner, price version, service tier and
    lateness.
    "" and 0 stand for no adapter, revision and rank class, and the epoch for usage that is not late: keys hold no NULL.

    ``requests`` counts requests, not rests. The ``…_requests`` of a quantity count requests that used any of it.
    """

    __tablename__ = "usage_hours"
    __table_args__ = (
        sa.Index(
            "ix_usage_hours_late",
            "tenant_id",
            "late_from",
            postgresql_where=sa.text("late_from > '1970-01-01T00:00:00Z'::timestamptz"),
        ),
    )

    tenant_id: str = Field(primary_key=True)
    hour: datetime = Field(primary_key=True, sa_type=Instant)
    late_from: datetime = Field(primary_key=True, sa_type=Instant)
    key_id: str = Field(primary_key=True)
    base_model: str = Field(primary_key=True)
    adapter_id: str = Field(primary_key=True)
    revision_id: str = Field(primary_key=True)
    rank_class: int = Field(primary_key=True)
    price_version_id: str = Field(primary_key=True)
    requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    estimated_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    input_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_page_ms: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    uncached_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    input_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    service_tier: str = Field(default="default", primary_key=True, sa_column_kwargs=_DEFAULT_TIER)


class UsageDay(SQLModel, table=True):
    """The sums of the hours of one UTC day with the same owner, price version and service tier, late or not. Reports by
    the day read them.
    """

    __tablename__ = "usage_days"

    tenant_id: str = Field(primary_key=True)
    day: datetime = Field(primary_key=True, sa_type=Instant)
    key_id: str = Field(primary_key=True)
    base_model: str = Field(primary_key=True)
    adapter_id: str = Field(primary_key=True)
    rank_class: int = Field(primary_key=True)
    price_version_id: str = Field(primary_key=True)
    requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    estimated_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    input_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_page_ms: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    input_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    service_tier: str = Field(default="default", primary_key=True, sa_column_kwargs=_DEFAULT_TIER)


class UsageMonth(SQLModel, table=True):
    """What a tenant used and was charged in one UTC month with one key: the truth about quotas and spending."""

    __tablename__ = "usage_months"

    tenant_id: str = Field(primary_key=True)
    month: datetime = Field(primary_key=True, sa_type=Instant)
    key_id: str = Field(primary_key=True)
    input_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    cached_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    amount_nanos: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    gpu_us: int = Field(default=0, sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)


class UsageReplicaHour(SQLModel, table=True):
    """The sums of the records of one replica and tenant whose request ids were made in one hour (UTC). Engines count by
    the same hour, so that reconciliation can compare the two exactly. An amendment changes nothing here: what a tenant
    owes is amended, not what an engine produced. ``exact_cached_tokens`` are those of records that are no estimate and
    have no aborted prefill, ``kv_measured_page_ms`` the part of the page-time that engines measured, not gateways.
    ``changed_at`` is when the newest record was written.
    """

    __tablename__ = "usage_replica_hours"
    __table_args__ = (sa.Index("ix_usage_replica_hours_changed_at", "changed_at"),)

    hour: datetime = Field(primary_key=True, sa_type=Instant)
    replica_id: str = Field(primary_key=True)
    tenant_id: str = Field(primary_key=True)
    base_model: str = Field(primary_key=True)
    requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    estimated_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    input_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    exact_cached_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    output_tokens: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_page_ms: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_measured_page_ms: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    kv_unmeasured_requests: int = Field(sa_type=sa.BigInteger, sa_column_kwargs=_COUNT)
    changed_at: datetime = Field(sa_type=Instant)


class YieldedUsage(SQLModel, table=True):
    """What an engine computed for a batch request before it gave way to better work and ran again: the platform's cost,
    in no tenant's usage. ``request_id`` is the request's with a number.
    """

    __tablename__ = "yielded_usage"
    __table_args__ = (
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens"
            " AND aborted_prefill_tokens BETWEEN 0 AND input_tokens",
            name="quantities_possible",
        ),
    )

    request_id: str = Field(primary_key=True, sa_type=sa.String(collation="C"))
    tenant_id: str
    base_model: str
    adapter_id: str | None = None
    replica_id: str
    settled_at: datetime = Field(sa_type=Instant)
    input_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int = Field(sa_type=sa.BigInteger)
    kv_measured: bool


class ProviderCost(SQLModel, table=True):
    """What a request cost at its outside provider, by the costs of a token when it ran. ``counted_here``: the tokens
    are the gateway's estimate, because the provider reported none that can be true. An amendment changes nothing here:
    the platform has paid. Without a price version its tenant was charged nothing.
    """

    __tablename__ = "provider_costs"
    __table_args__ = (
        sa.CheckConstraint("cost_nanos >= 0", name="cost_not_negative"),
        sa.Index("ix_provider_costs_settled_at", "settled_at"),
    )

    request_id: str = Field(primary_key=True, sa_type=sa.String(collation="C"))
    tenant_id: str
    base_model: str
    price_version_id: str | None = Field(foreign_key="price_versions.id")
    settled_at: datetime = Field(sa_type=Instant)
    input_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    cost_nanos: int = Field(sa_type=sa.BigInteger)
    counted_here: bool


class UsageAmendment(SQLModel, table=True):
    """One part of an amendment of a usage record: the reversal of what it said until then, or its replacement. A voided
    record has a reversal only. Quantities are what is taken back or added, and the transfer moves their amount.
    """

    __tablename__ = "usage_amendments"
    __table_args__ = (
        sa.CheckConstraint("part IN ('reversal', 'replacement')", name="part_known"),
        sa.CheckConstraint("position > 0", name="position_positive"),
        sa.CheckConstraint(
            "input_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0 AND cached_tokens BETWEEN 0 AND input_tokens"
            " AND aborted_prefill_tokens BETWEEN 0 AND input_tokens",
            name="quantities_possible",
        ),
        sa.CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0 AND kv_nanos >= 0"
            " AND amount_nanos = input_nanos + cached_input_nanos + output_nanos + kv_nanos",
            name="amount_is_sum_of_parts",
        ),
        sa.Index("ix_usage_amendments_tenant_id", "tenant_id"),
    )

    request_id: str = Field(primary_key=True, sa_type=sa.String(collation="C"))
    position: int = Field(primary_key=True)
    part: str
    tenant_id: str
    input_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    aborted_prefill_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int = Field(sa_type=sa.BigInteger)
    input_nanos: int = Field(sa_type=sa.BigInteger)
    cached_input_nanos: int = Field(sa_type=sa.BigInteger)
    output_nanos: int = Field(sa_type=sa.BigInteger)
    kv_nanos: int = Field(sa_type=sa.BigInteger)
    amount_nanos: int = Field(sa_type=sa.BigInteger)
    transfer_id: str = Field(unique=True, foreign_key="transfers.id")
    reason: str
    actor: str
    created_at: datetime = Field(sa_type=Instant)
