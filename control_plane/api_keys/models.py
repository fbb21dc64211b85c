"""Table of the API keys room. A key is stored only as its HMAC, and is revoked instead of deleted."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ColumnElement, DateTime, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel, col

from core import clock
from core.ids import new_id


class ApiKey(SQLModel, table=True):
    """One key. The secret itself was shown once and is not stored. ``tenant_id`` is empty for an admin key. After a
    rotation the secret before it is ``previous_hash``, which is valid until ``previous_ends_at``.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("(tenant_id IS NULL) = (scopes = ARRAY['admin'])", name="admin_has_no_tenant"),
        CheckConstraint("(previous_hash IS NULL) = (previous_ends_at IS NULL)", name="previous_ends"),
    )

    id: str = Field(default_factory=lambda: new_id("key"), primary_key=True, sa_type=Text)
    tenant_id: str | None = Field(default=None, foreign_key="tenants.id", index=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    key_hash: str = Field(unique=True, sa_type=Text, description="HMAC-SHA256 in hex, see core.api_keys.hash_key.")
    redacted: str = Field(sa_type=Text, description="Shown in lists: prefix and last four characters.")
    scopes: list[str] = Field(sa_type=ARRAY(Text))
    limits: dict[str, Any] | None = Field(
        default=None, sa_type=JSONB(none_as_null=True), description="``core.contracts.KeyLimits``."
    )
    models: list[str] | None = Field(default=None, sa_type=ARRAY(Text), description="Null for all.")
    expires_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    previous_hash: str | None = Field(default=None, unique=True, sa_type=Text)
    previous_ends_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
    revoked_at: datetime | None = Field(default=None, sa_type=DateTime(timezone=True))


def is_usable(now: datetime) -> ColumnElement[bool]:
    """Whether a key was not revoked and has not expired."""
    return col(ApiKey.revoked_at).is_(None) & (col(ApiKey.expires_at).is_(None) | (col(ApiKey.expires_at) > now))
