"""Moves old rows of the audit trail into a file. The rows leave the database only after the file is on disk.

Only the owner of the table may do this; a trigger refuses everyone else, and every change of a row.
"""

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import delete, text
from sqlmodel import Session, col, select

from control_plane.audit import service
from control_plane.audit.models import AuditEvent

_BATCH: Final = 5_000


def archive(session: Session, *, before: datetime, path: Path, actor: str) -> int:
    """Write all rows older than ``before`` to the new file ``path``, one JSON object a line, oldest first, and delete
    them. The archiving itself is recorded with the file's SHA-256. Returns the number of rows. Raises FileExistsError.
    The caller commits; if it does not, the rows stay.
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
    service.record(session, actor=actor, action="audit.archived", target=path.name, details=details)
    return count


def _take(session: Session, before: datetime) -> list[dict[str, Any]]:  # columns of several types
    older = select(AuditEvent.id).where(col(AuditEvent.created_at) < before)
    oldest = older.order_by(col(AuditEvent.created_at), col(AuditEvent.id)).limit(_BATCH)
    taken = session.execute(delete(AuditEvent).where(col(AuditEvent.id).in_(oldest)).returning(AuditEvent)).scalars()
    return [row.model_dump(mode="json") for row in sorted(taken, key=lambda row: (row.created_at, row.id))]
