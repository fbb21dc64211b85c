"""The tables of reconciliation: what engines counted, kept so that it outlives Redis, and the results of its runs."""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from core.db import Instant


class EngineUsageCount(SQLModel, table=True):
    """What one engine process counted for one tenant's requests that have ended and whose ids were made in one hour
    (UTC). Counts only grow. ``changed_at`` is when billing learned of the last change.
    """

    __tablename__ = "engine_usage_hours"
    __table_args__ = (
        sa.CheckConstraint(
            "requests >= 0 AND prompt_tokens >= 0 AND cached_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0"
            " AND kv_unmeasured_requests >= 0",
            name="counts_possible",
        ),
        sa.Index("ix_engine_usage_hours_changed_at", "changed_at"),
    )

    hour: datetime = Field(primary_key=True, sa_type=Instant)
    replica_id: str = Field(primary_key=True)
    boot_id: str = Field(primary_key=True)
    tenant_id: str = Field(primary_key=True)
    base_model: str
    requests: int = Field(sa_type=sa.BigInteger)
    prompt_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int = Field(sa_type=sa.BigInteger)
    kv_unmeasured_requests: int = Field(sa_type=sa.BigInteger)
    changed_at: datetime = Field(sa_type=Instant)


class EngineEndedRequest(SQLModel, table=True):
    """The engine's final counts of one request that was aborted or whose gateway may not have received its end. Written
    once. A request that was tried on two replicas may have a row for each.
    """

    __tablename__ = "engine_ended_requests"
    __table_args__ = (
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND cached_tokens >= 0 AND output_tokens >= 0 AND kv_page_ms >= 0",
            name="counts_possible",
        ),
        sa.Index("ix_engine_ended_requests_reported_at", "reported_at"),
    )

    request_id: str = Field(primary_key=True, sa_type=sa.String(collation="C"))
    replica_id: str = Field(primary_key=True)
    boot_id: str = Field(primary_key=True)
    tenant_id: str
    base_model: str
    prompt_tokens: int = Field(sa_type=sa.BigInteger)
    cached_tokens: int = Field(sa_type=sa.BigInteger)
    output_tokens: int = Field(sa_type=sa.BigInteger)
    kv_page_ms: int | None = Field(default=None, sa_type=sa.BigInteger)
    ended_at: datetime = Field(sa_type=Instant)
    reported_at: datetime = Field(sa_type=Instant)


class ReconciliationRun(SQLModel, table=True):
    """The result of one run, written once. A run of mode ``changed`` read only hours that changed since
    ``changed_since`` and those that differed in the run before; its differences are nevertheless all that stand.
    """

    __tablename__ = "reconciliation_runs"
    __table_args__ = (
        sa.CheckConstraint("mode IN ('changed', 'full')", name="mode_known"),
        sa.CheckConstraint("(mode = 'full') = (changed_since IS NULL)", name="mode_fits_start"),
        sa.CheckConstraint("hours >= 0 AND differing >= 0", name="counts_possible"),
    )

    id: str = Field(primary_key=True)
    mode: str
    started_at: datetime = Field(sa_type=Instant)
    finished_at: datetime = Field(sa_type=Instant)
    changed_since: datetime | None = Field(default=None, sa_type=Instant)
    hours: int = Field(sa_type=sa.BigInteger)
    engine_tokens: int = Field(sa_type=sa.BigInteger)
    ledger_tokens: int = Field(sa_type=sa.BigInteger)
    explained_tokens: int = Field(sa_type=sa.BigInteger)
    unexplained_tokens: int = Field(sa_type=sa.BigInteger)
    engine_kv_page_ms: int = Field(sa_type=sa.BigInteger)
    ledger_kv_page_ms: int = Field(sa_type=sa.BigInteger)
    explained_kv_page_ms: int = Field(sa_type=sa.BigInteger)
    unexplained_kv_page_ms: int = Field(sa_type=sa.BigInteger)
    unexplained_nanos: int = Field(sa_type=sa.BigInteger)
    differing: int = Field(sa_type=sa.BigInteger)


class ReconciliationDifference(SQLModel, table=True):
    """One thing that differed in a run. ``expected`` is the earlier count in the life of a dollar (the engine's, then
    the ledger's), ``found`` the later one; ``expected`` = ``found`` + ``explained`` + ``unexplained``.
    """

    __tablename__ = "reconciliation_differences"
    __table_args__ = (
        sa.ForeignKeyConstraint(["run_id"], ["reconciliation_runs.id"], deferrable=True, initially="DEFERRED"),
        sa.CheckConstraint(
            "unit IN ('token', 'page_millisecond', 'nanodollar', 'cent', 'document')", name="unit_known"
        ),
    )

    run_id: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    kind: str
    subject: str
    replica_id: str | None = None
    tenant_id: str | None = None
    base_model: str | None = None
    hour: datetime | None = Field(default=None, sa_type=Instant)
    unit: str
    expected: int = Field(sa_type=sa.BigInteger)
    found: int = Field(sa_type=sa.BigInteger)
    explained: int = Field(sa_type=sa.BigInteger)
    unexplained: int = Field(sa_type=sa.BigInteger)
    request_ids: list[str] = Field(sa_type=sa.ARRAY(sa.String()))
