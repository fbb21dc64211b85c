"""Writes and counts rows of the audit trail. A row is written in the transaction of the change itself, so neither
exists without the other.
"""

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
    """Record that ``actor`` did ``action`` (``room.verb``) to ``target``. ``details`` must hold no secrets or
    prompts.
    """
    session.add(AuditEvent(actor=actor, action=action, target=target, tenant_id=tenant_id, details=details or {}))


def count_recent(session: Session, *, tenant_id: str, action: str, within: timedelta, count_max: int) -> int:
    """The number of the tenant's events of this action in the last ``within``, counted up to ``count_max``."""
    recent = select(AuditEvent.id).where(
        AuditEvent.tenant_id == tenant_id,
        AuditEvent.action == action,
        col(AuditEvent.created_at) > database_now(session) - within,
    )
    return session.exec(select(func.count()).select_from(recent.limit(count_max).subquery())).one()
