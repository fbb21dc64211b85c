"""Keeps in the audit trail what a tenant tried to upload and was refused at once, with the reason it was given.

A refused call costs its sender nothing, so there is a limit to what is kept of one tenant's: above it refusals are
counted by a metric alone. Written after the refused transaction is over: dying between the two loses the row, and the
refusal stands.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import Engine
from sqlmodel import col, func, select

from control_plane import metrics
from control_plane.audit import service as audit
from control_plane.audit.models import AuditEvent
from core.db import database_now, unit_of_work
from core.errors import AppError, Forbidden, InvalidRequest, TooLarge, UnsupportedMedia

ACTION: Final = "revision.refused"
_OF_THE_UPLOAD: Final = (InvalidRequest, UnsupportedMedia, TooLarge, Forbidden)
"""What is said of the files and the plan. That there is no such adapter, or that another call is in work, is not."""


def note(engine: Engine, refusal: AppError, *, tenant_id: str, adapter: str, actor: str, hourly_max: int) -> None:
    """Record that an announcement for ``adapter`` was refused, if it was for what it announced."""
    if not isinstance(refusal, _OF_THE_UPLOAD):
        return
    metrics.REFUSED_ANNOUNCEMENTS.labels(refusal.code).inc()
    with unit_of_work(engine) as session:
        last_hour = select(AuditEvent.id).where(
            AuditEvent.tenant_id == tenant_id,
            AuditEvent.action == ACTION,
            col(AuditEvent.created_at) > database_now(session) - timedelta(hours=1),
        )
        if session.exec(select(func.count()).select_from(last_hour.limit(hourly_max).subquery())).one() >= hourly_max:
            return
        audit.record(
            session,
            actor=actor,
            action=ACTION,
            target=adapter,
            tenant_id=tenant_id,
            details={"codes": [refusal.code], "param": refusal.param},
        )
