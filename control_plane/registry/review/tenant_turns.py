"""The order in which revisions that wait for the same workers or replicas are served: tenants take turns.

A tenant's first revision of an hour comes before another tenant's second one.
"""

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func, or_
from sqlmodel import Session, col, select

from control_plane.registry.models import Revision
from core.db import database_now

_REMEMBERED: Final = timedelta(hours=1)


def turns(session: Session) -> Any:
    """A subquery of ``id`` and ``turn``: the position of every waiting revision among its tenant's. Revisions that were
    completed within the last hour count even when they are decided; otherwise a tenant with many early uploads would
    stay first until its last one.
    """
    waiting = select(Revision.tenant_id).where(Revision.status == "validating")
    recent = col(Revision.completed_at) > database_now(session) - _REMEMBERED
    turn = func.row_number().over(partition_by=col(Revision.tenant_id), order_by=col(Revision.id))
    counted = or_(col(Revision.status) == "validating", recent)
    return select(Revision.id, turn.label("turn")).where(counted, col(Revision.tenant_id).in_(waiting)).subquery()
