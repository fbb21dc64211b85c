"""Tables of the registry room: base models, outside providers, adapters, their aliases, revisions and announced files,
and revocations.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, DateTime, ForeignKeyConstraint, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock
from core.ids import new_id


class BaseModel(SQLModel, table=True):
    """A model that adapters are trained on. ``spec_zlib`` is the compressed JSON of
    ``adapters.base_model_spec.BaseModelSpec``, including tokenizer and template; the other columns repeat the fields
    that are queried often. Only context length and ranks change, and the measured GPU time of a token.
    """

    __tablename__ = "base_models"

    id: str = Field(primary_key=True, sa_type=Text)
    hub_name: str = Field(unique=True, sa_type=Text)
    context_tokens: int = Field(sa_type=BigInteger)
    vocab_size: int = Field(sa_type=BigInteger)
    tokenizer_sha256: str = Field(sa_type=Text)
    spec_zlib: bytes = Field(sa_type=LargeBinary)
    spec_sha256: str = Field(sa_type=Text, description="SHA-256 of the spec's canonical JSON; equal for equal specs.")
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    input_token_us: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    output_token_us: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})


class BaseModelName(SQLModel, table=True):
    """A further name of a base model. ``key`` is the name in lower case."""

    __tablename__ = "base_model_names"

    key: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    base_model: str = Field(foreign_key="base_models.id", index=True, sa_type=Text)


class Provider(SQLModel, table=True):
    """An outside provider of models. ``sealed_key`` is its API key, encrypted for its id (``core.sealed_secrets``)."""

    __tablename__ = "providers"
    __table_args__ = (
        CheckConstraint("kind IN ('openai', 'anthropic', 'openai_compatible')", name="kind_known"),
        CheckConstraint("requests_max >= 0 AND spend_nanos_per_month >= 0", name="limits_not_negative"),
    )

    id: str = Field(default_factory=lambda: new_id("prv"), primary_key=True, sa_type=Text)
    name: str = Field(unique=True, sa_type=Text)
    kind: str = Field(sa_type=Text)
    url: str = Field(sa_type=Text)
    sealed_key: bytes = Field(sa_type=LargeBinary)
    requests_max: int = Field(sa_type=BigInteger)
    spend_nanos_per_month: int | None = Field(default=None, sa_type=BigInteger)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class ProviderModel(SQLModel, table=True):
    """A base model that an outside provider serves, under its name ``model``. ``counts_like`` is the base model whose
    tokenizer and template count its prompts. Costs are nanodollars for a token.
    """

    __tablename__ = "provider_models"
    __table_args__ = (
        CheckConstraint("margin_percent BETWEEN 0 AND 100", name="margin_possible"),
        CheckConstraint(
            "input_nanos >= 0 AND cached_input_nanos >= 0 AND output_nanos >= 0", name="costs_not_negative"
        ),
    )

    base_model: str = Field(foreign_key="base_models.id", primary_key=True, sa_type=Text)
    provider_id: str = Field(foreign_key="providers.id", index=True, sa_type=Text)
    model: str = Field(sa_type=Text)
    counts_like: str = Field(foreign_key="base_models.id", sa_type=Text)
    margin_percent: int = Field(sa_type=BigInteger)
    input_nanos: int = Field(sa_type=BigInteger)
    cached_input_nanos: int = Field(sa_type=BigInteger)
    output_nanos: int = Field(sa_type=BigInteger)


class Adapter(SQLModel, table=True):
    """A tenant's name for a fine-tune of one base model. A deleted adapter keeps its row and frees its name."""

    __tablename__ = "adapters"
    __table_args__ = (
        Index("uq_adapters_live_name", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index("uq_adapters_tenant_id_id", "tenant_id", "id", unique=True),
    )

    id: str = Field(default_factory=lambda: new_id("ad"), primary_key=True, sa_type=Text)
    tenant_id: str = Field(foreign_key="tenants.id", sa_type=Text)
    base_model: str = Field(foreign_key="base_models.id", index=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    pinned: bool = Field(default=False, description="Kept in replicas' host memory, within the plan's limit.")
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
    """One upload and its verdict. ``attempts`` counts the workers that claimed it and is their fencing token."""

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
        default=None,
        sa_type=Text,
        index=True,
        description="Digest of the files that validation accepted and stored, ready or not.",
    )
    stored_bytes: int | None = Field(
        default=None, sa_type=BigInteger, description="Size of the files that validation stored."
    )
    rank: int | None = Field(default=None)
    rank_class: int | None = Field(default=None, description="Largest rank of the pool that serves the revision.")
    canary: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    canary_attempts: int = Field(default=0)
    canary_asked_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    report: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    attempts: int = Field(default=0)
    next_attempt_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    completed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    decided_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    ready_change_id: int | None = Field(
        default=None,
        sa_type=BigInteger,
        description="The change that publishes the revision, until every gateway has acknowledged it.",
    )
    uploads_removed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    stored_removed_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))


class PinEvent(SQLModel, table=True):
    """From ``at`` on, the platform keeps an engine name in memory (``pinned``), or keeps it no longer. Written once."""

    __tablename__ = "pin_events"
    __table_args__ = (Index("ix_pin_events_adapter_id", "adapter_id"),)

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    tenant_id: str = Field(sa_type=Text)
    adapter_id: str = Field(sa_type=Text)
    engine_name: str = Field(sa_type=Text)
    base_model: str = Field(sa_type=Text)
    rank_class: int
    pinned: bool
    at: datetime = Field(sa_type=DateTime(timezone=True))


class UploadFile(SQLModel, table=True):
    """One file of a revision, announced before its upload."""

    __tablename__ = "upload_files"
    __table_args__ = (CheckConstraint("size_bytes > 0", name="size_positive"),)

    revision_id: str = Field(foreign_key="revisions.id", primary_key=True, sa_type=Text)
    path: str = Field(primary_key=True, sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: str = Field(sa_type=Text)
    s3_upload_id: str | None = Field(
        default=None, sa_type=Text, description="Id of the open multipart upload, if there is one."
    )
    part_bytes: int | None = Field(default=None, sa_type=BigInteger)


class AdapterRevocation(SQLModel, table=True):
    """The revocation of an adapter, from the end of its route to the removal of its last copy. With the ``reason``
    suspended it is lifted when the tenant becomes active again; with deleted the files in the object store are removed
    too.
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
    unloaded_at: datetime | None = Field(
        default=None, sa_type=DateTime(timezone=True), description="When every replica had unloaded it."
    )
    removed_at: datetime | None = Field(
        default=None, sa_type=DateTime(timezone=True), description="When its files were deleted."
    )
    forgotten_at: datetime | None = Field(
        default=None, sa_type=DateTime(timezone=True), description="When its publication ended."
    )
    lifted_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
