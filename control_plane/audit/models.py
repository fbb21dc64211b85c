"""Table of the audit room: actor, action, target and time of every change. A trigger allows inserts only."""

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, Index, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core import clock
from core.ids import new_id


class AuditEvent(SQLModel, table=True):
    """One action. ``actor`` is a key id or the name of a process; ``tenant_id`` is the affected tenant, if any."""

    __tablename__ = "audit_events"
    __table_args__ = tuple(
        Index(f"ix_audit_events_{column}_id", column, "id") for column in ("tenant_id", "actor", "action", "target")
    )

    id: str = Field(default_factory=lambda: new_id("aud"), primary_key=True, sa_type=Text)
    tenant_id: str | None = Field(default=None, sa_type=Text)
    actor: str = Field(sa_type=Text)
    action: str = Field(sa_type=Text)
    target: str = Field(sa_type=Text)
    details: dict[str, Any] = Field(default_factory=dict, sa_type=JSONB)
    created_at: datetime = Field(default_factory=clock.now, index=True, sa_type=DateTime(timezone=True))
