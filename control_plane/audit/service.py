"""Writes the audit trail: one row in the transaction of the act itself, so that neither exists without the other."""

from datetime import timedelta
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from control_plane.audit.models import AuditEvent
from core.db import database_now


def record(
    session: Session,
    *,
    actor: str,
    action: str,
    target: str,
    tenant_id: str | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Note that ``actor`` did ``action`` (``room.verb``) to ``target``. Details hold no secrets and no prompts."""
    session.add(AuditEvent(actor=actor, action=action, target=target, tenant_id=tenant_id, details=details or {}))


def count_recent(session: Session, *, tenant_id: str, action: str, within: timedelta, count_max: int) -> int:
    """How many events of this action concern the tenant within the last ``within``; stops counting at ``count_max``."""
    recent = select(AuditEvent.id).where(
        AuditEvent.tenant_id == tenant_id,
        AuditEvent.action == action,
        col(AuditEvent.created_at) > database_now(session) - within,
    )
    return session.exec(select(func.count()).select_from(recent.limit(count_max).subquery())).one()
