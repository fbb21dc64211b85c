"""Records in the audit trail which uploads of a tenant were refused at once, with the reason that the caller got.

A refused call costs its sender nothing, so the rows per tenant and hour are limited; above the limit only a metric
counts refusals. The row is written after the refused transaction has ended: a crash between the two loses the row, and
the refusal stands.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import Engine

from control_plane import metrics
from control_plane.audit import service as audit
from core.db import unit_of_work
from core.errors import AppError, Forbidden, InvalidRequest, TooLarge, UnsupportedMedia

ACTION: Final = "revision.refused"
_ABOUT_THE_UPLOAD: Final = (InvalidRequest, UnsupportedMedia, TooLarge, Forbidden)
"""Refusals of the files or by the plan. A missing adapter or a concurrent call says nothing of the upload."""


def record_refusal(
    engine: Engine, refusal: AppError, *, tenant_id: str, adapter: str, actor: str, hourly_max: int
) -> None:
    """Record that an upload announced for ``adapter`` was refused, if its files or the plan were the reason."""
    if not isinstance(refusal, _ABOUT_THE_UPLOAD):
        return
    metrics.REFUSED_ANNOUNCEMENTS.labels(refusal.code).inc()
    with unit_of_work(engine) as session:
        recent = audit.count_recent(
            session, tenant_id=tenant_id, action=ACTION, within=timedelta(hours=1), count_max=hourly_max
        )
        if recent >= hourly_max:
            return
        audit.record(
            session,
            actor=actor,
            action=ACTION,
            target=adapter,
            tenant_id=tenant_id,
            details={"codes": [refusal.code], "param": refusal.param},
        )
