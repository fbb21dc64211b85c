"""Writes, counts and archives rows of the audit trail. A row is written in the transaction of the change itself, so
neither exists without the other.
"""

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import delete, func, text
from sqlmodel import Session, col, select

from control_plane.audit.models import AuditEvent
from control_plane.auth.authenticate import Principal
from core.db import database_now

_BATCH: Final = 5_000


def audited(
    session: Session,
    principal: Principal,
    action: str,
    target: str,
    *,
    tenant_id: str | None = None,
    details: msgspec.Struct | Mapping[str, Any] | None = None,
) -> None:
    """Record what a route did for its caller: ``action`` (``room.verb``) to ``target``. The affected tenant is the
    caller, unless an admin's route names it. ``details`` must hold no secrets or prompts.
    """
    record(
        session,
        actor=principal.key_id,
        action=action,
        target=target,
        tenant_id=principal.tenant_id or tenant_id,
        details=msgspec.to_builtins(details),
    )


def record(
    session: Session,
    *,
    actor: str,
    action: str,
    target: str,
    tenant_id: str | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Record that ``actor`` did ``action`` to ``target``, as ``audited`` does."""
    session.add(AuditEvent(actor=actor, action=action, target=target, tenant_id=tenant_id, details=details or {}))


def count_recent(session: Session, *, tenant_id: str, action: str, within: timedelta, count_max: int) -> int:
    """The number of the tenant's events of this action in the last ``within``, counted up to ``count_max``."""
    recent = select(AuditEvent.id).where(
        AuditEvent.tenant_id == tenant_id,
        AuditEvent.action == action,
        col(AuditEvent.created_at) > database_now(session) - within,
    )
    return session.exec(select(func.count()).select_from(recent.limit(count_max).subquery())).one()


def archive(session: Session, *, before: datetime, path: Path, actor: str) -> int:
    """Write all rows older than ``before`` to the new file ``path``, one JSON object a line, oldest first, and delete
    them. The archiving itself is recorded with the file's SHA-256. Returns the number of rows. Raises FileExistsError.
    The caller commits; if it does not, the rows stay. Only the owner of the table may do this: a trigger refuses
    everyone else, and every change of a row.
    """
    session.execute(text("SET LOCAL tenora.archiving_audit = 'on'"))
    hasher, count = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        while rows := _take(session, before):
            for row in rows:
                line = msgspec.json.encode(row) + b"\n"
                hasher.update(line)
                out.write(line)
            count += len(rows)
        out.flush()
        os.fsync(out.fileno())
    details = {"rows": count, "before": before.isoformat(), "sha256": hasher.hexdigest()}
    record(session, actor=actor, action="audit.archived", target=path.name, details=details)
    return count


def _take(session: Session, before: datetime) -> list[dict[str, Any]]:  # columns of several types
    older = select(AuditEvent.id).where(col(AuditEvent.created_at) < before)
    oldest = older.order_by(col(AuditEvent.created_at), col(AuditEvent.id)).limit(_BATCH)
    taken = session.execute(delete(AuditEvent).where(col(AuditEvent.id).in_(oldest)).returning(AuditEvent)).scalars()
    return [row.model_dump(mode="json") for row in sorted(taken, key=lambda row: (row.created_at, row.id))]
