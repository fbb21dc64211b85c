"""Tables of the batches room. The contents of files lie in S3."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class BatchFile(SQLModel, table=True):
    """One file of a tenant. Its object is complete once ``stored_at`` is set. The cleanup deletes the object of a
    deleted or expired file, and then the row.
    """

    __tablename__ = "batch_files"
    __table_args__ = (
        sa.CheckConstraint("purpose IN ('batch', 'batch_output')", name="purpose_known"),
        sa.CheckConstraint("size_bytes >= 0", name="size_possible"),
        sa.Index("ix_batch_files_tenant_id_id", "tenant_id", "id"),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(foreign_key="tenants.id", sa_type=sa.Text)
    filename: str = Field(sa_type=sa.Text)
    purpose: str = Field(sa_type=sa.Text)
    size_bytes: int = Field(default=0, sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime = Field(index=True, sa_type=Instant)
    stored_at: datetime | None = Field(default=None, sa_type=Instant)
    deleted_at: datetime | None = Field(default=None, sa_type=Instant)


class BatchRow(SQLModel, table=True):
    """One batch. The counts and sums are of the lines in ``batch_results``, and change in one transaction with them.
    ``ends_as`` is set once no line will be sent any more; ``end_code`` and ``end_message`` say why lines were left.
    """

    __tablename__ = "batches"
    __table_args__ = (
        sa.CheckConstraint(
            "status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', "
            "'cancelled')",
            name="status_known",
        ),
        sa.CheckConstraint(
            "(ended_at IS NOT NULL) = (status IN ('failed', 'completed', 'expired', 'cancelled'))",
            name="ended_has_time",
        ),
        sa.CheckConstraint("completed >= 0 AND failed >= 0 AND completed + failed <= total", name="counts_possible"),
        sa.Index("ix_batches_tenant_id_id", "tenant_id", "id"),
        sa.Index("ix_batches_open", "id", postgresql_where=sa.text("ended_at IS NULL")),
    )

    id: str = Field(primary_key=True, sa_type=sa.Text)
    tenant_id: str = Field(foreign_key="tenants.id", sa_type=sa.Text)
    key_id: str = Field(foreign_key="api_keys.id", sa_type=sa.Text)
    input_file_id: str = Field(sa_type=sa.Text)
    endpoint: str = Field(sa_type=sa.Text)
    priority: int = Field(default=1, sa_type=sa.BigInteger)
    callback_endpoint_id: str | None = Field(default=None, sa_type=sa.Text)
    labels: dict[str, str] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    status: str = Field(default="validating", sa_type=sa.Text)
    service_class: str = Field(default="batch", sa_type=sa.Text)
    errors: list[dict[str, Any]] | None = Field(default=None, sa_type=JSONB(none_as_null=True))
    model: str | None = Field(default=None, sa_type=sa.Text)
    total: int = Field(default=0, sa_type=sa.BigInteger)
    completed: int = Field(default=0, sa_type=sa.BigInteger)
    failed: int = Field(default=0, sa_type=sa.BigInteger)
    enqueued_tokens: int = Field(default=0, sa_type=sa.BigInteger)
    input_tokens: int = Field(default=0, sa_type=sa.BigInteger)
    cached_tokens: int = Field(default=0, sa_type=sa.BigInteger)
    output_tokens: int = Field(default=0, sa_type=sa.BigInteger)
    cost_nanos: int = Field(default=0, sa_type=sa.BigInteger)
    result_bytes: int = Field(default=0, sa_type=sa.BigInteger)
    ends_as: str | None = Field(default=None, sa_type=sa.Text)
    end_code: str | None = Field(default=None, sa_type=sa.Text)
    end_message: str | None = Field(default=None, sa_type=sa.Text)
    output_file_id: str | None = Field(default=None, sa_type=sa.Text)
    error_file_id: str | None = Field(default=None, sa_type=sa.Text)
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime = Field(sa_type=Instant)
    in_progress_at: datetime | None = Field(default=None, sa_type=Instant)
    finalizing_at: datetime | None = Field(default=None, sa_type=Instant)
    cancelling_at: datetime | None = Field(default=None, sa_type=Instant)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)


class BatchResult(SQLModel, table=True):
    """The answer to one line, as the output or error file will have it. The key makes it the only one. The rows of a
    batch are deleted once its files are stored.
    """

    __tablename__ = "batch_results"

    batch_id: str = Field(primary_key=True, foreign_key="batches.id", sa_type=sa.Text)
    line: int = Field(primary_key=True, sa_type=sa.BigInteger)
    failed: bool = Field(sa_type=sa.Boolean)
    body: bytes = Field(sa_type=sa.LargeBinary)


class BatchPause(SQLModel, table=True):
    """While its one row exists, no line of any batch is sent."""

    __tablename__ = "batch_pauses"
    __table_args__ = (sa.CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(default=1, primary_key=True, sa_type=sa.BigInteger)
    reason: str = Field(sa_type=sa.Text)
    since: datetime = Field(sa_type=Instant)
