"""Tables of the registry room: base models, tenants' adapters, their revisions and the files each one announced."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, DateTime, ForeignKeyConstraint, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock
from core.ids import new_id


class BaseModel(SQLModel, table=True):
    """A model that adapters are made for. ``spec_zlib`` is the compressed JSON of
    ``adapters.base_model_spec.BaseModelSpec``, tokenizer and template included; the columns beside it are what is
    asked for often. Never changed.
    """

    __tablename__ = "base_models"

    id: str = Field(primary_key=True, sa_type=Text)
    hub_name: str = Field(unique=True, sa_type=Text)
    context_tokens: int = Field(sa_type=BigInteger)
    vocab_size: int = Field(sa_type=BigInteger)
    tokenizer_sha256: str = Field(sa_type=Text)
    spec_zlib: bytes = Field(sa_type=LargeBinary)
    spec_sha256: str = Field(
        sa_type=Text, description="Of the spec's canonical JSON: two specs are equal when these are."
    )
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class Adapter(SQLModel, table=True):
    """A tenant's name for a fine-tune of one base model. A deleted adapter keeps its row, and frees its name."""

    __tablename__ = "adapters"
    __table_args__ = (
        Index("uq_adapters_live_name", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index("uq_adapters_tenant_id_id", "tenant_id", "id", unique=True),
    )

    id: str = Field(default_factory=lambda: new_id("ad"), primary_key=True, sa_type=Text)
    tenant_id: str = Field(foreign_key="tenants.id", sa_type=Text)
    base_model: str = Field(foreign_key="base_models.id", index=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    pinned: bool = Field(default=False, description="Kept in host memory, as far as the plan pays for it.")
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    deleted_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))


class Alias(SQLModel, table=True):
    """A movable name for one revision of an adapter, or for several by weight: ``{revision id: weight}``."""

    __tablename__ = "aliases"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"]),)

    adapter_id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    tenant_id: str = Field(sa_type=Text)
    weights: dict[str, int] = Field(sa_type=JSONB)
    updated_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class Revision(SQLModel, table=True):
    """One upload and its verdict. ``attempts`` counts the workers that took it up, and fences out one that is late."""

    __tablename__ = "revisions"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"]),
        CheckConstraint("status IN ('uploading', 'validating', 'ready', 'rejected')", name="status_known"),
        CheckConstraint("(status = 'ready') = (digest IS NOT NULL)", name="ready_has_digest"),
        CheckConstraint("size_bytes > 0", name="size_positive"),
        Index("ix_revisions_adapter", "tenant_id", "adapter_id", "id"),
        Index("ix_revisions_waiting", "status", "id", postgresql_where=text("status IN ('uploading', 'validating')")),
        Index("ix_revisions_uncleaned", "created_at", postgresql_where=text("uploads_removed_at IS NULL")),
    )

    id: str = Field(default_factory=lambda: new_id("rev"), primary_key=True, sa_type=Text)
    tenant_id: str = Field(sa_type=Text)
    adapter_id: str = Field(sa_type=Text)
    status: str = Field(default="uploading", sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    digest: str | None = Field(default=None, sa_type=Text)
    checked_digest: str | None = Field(
        default=None, sa_type=Text, index=True, description="Of what validation accepted and stored, ready or not."
    )
    rank: int | None = Field(default=None)
    rank_class: int | None = Field(default=None, description="Largest rank of the pool that serves it.")
    canary: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    canary_attempts: int = Field(default=0)
    canary_asked_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    report: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    attempts: int = Field(default=0)
    leased_until: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    completed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    decided_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    uploads_removed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    stored_removed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))


class UploadFile(SQLModel, table=True):
    """One file that a revision announced before it was uploaded."""

    __tablename__ = "upload_files"
    __table_args__ = (CheckConstraint("size_bytes > 0", name="size_positive"),)

    revision_id: str = Field(foreign_key="revisions.id", primary_key=True, sa_type=Text)
    path: str = Field(primary_key=True, sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: str = Field(sa_type=Text)
    s3_upload_id: str | None = Field(default=None, sa_type=Text, description="Of a multipart upload, while it is open.")
    part_bytes: int | None = Field(default=None, sa_type=BigInteger)


class AdapterRevocation(SQLModel, table=True):
    """That an adapter may be served no more, from the stop of its routing to the removal of its last copy. One with
    ``reason`` suspended is lifted when its tenant may serve again; one with deleted goes on to the object store.
    """

    __tablename__ = "adapter_revocations"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"]),
        CheckConstraint("reason IN ('deleted', 'suspended')", name="reason_known"),
        Index("ix_adapter_revocations_open", "id", postgresql_where=text("forgotten_at IS NULL AND lifted_at IS NULL")),
        Index("ix_adapter_revocations_adapter", "adapter_id"),
    )

    id: str = Field(default_factory=lambda: new_id("rvk"), primary_key=True, sa_type=Text)
    tenant_id: str = Field(sa_type=Text)
    adapter_id: str = Field(sa_type=Text)
    reason: str = Field(sa_type=Text)
    engine_names: list[str] = Field(sa_type=JSONB)
    receipts: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB, description="By replica id.")
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    unloaded_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True), description="By every replica.")
    removed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True), description="From the store.")
    forgotten_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True), description="No longer told.")
    lifted_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
