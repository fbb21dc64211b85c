"""Writes the audit trail: one row in the transaction of the act itself, so that neither exists without the other."""

from typing import Any

from sqlmodel import Session

from control_plane.audit.models import AuditEvent


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
