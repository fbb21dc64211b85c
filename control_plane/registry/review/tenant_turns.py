"""Whose revision is next, where many wait for the same workers or replicas: tenants take turns.

A tenant's first of an hour comes before another's second. What each turn is spent on is said where it is taken.
"""

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func, or_
from sqlmodel import Session, col, select

from control_plane.registry.models import Revision
from core.db import database_now

_REMEMBERED: Final = timedelta(hours=1)


def turns(session: Session) -> Any:
    """A subquery of ``id`` and ``turn``: the place of every open revision among its tenant's. Those completed within
    the last hour count although they are decided, or whoever sent many first would stay first until the last of them.
    """
    waiting = select(Revision.tenant_id).where(Revision.status == "validating")
    recent = col(Revision.completed_at) > database_now(session) - _REMEMBERED
    turn = func.row_number().over(partition_by=col(Revision.tenant_id), order_by=col(Revision.id))
    counted = or_(col(Revision.status) == "validating", recent)
    return select(Revision.id, turn.label("turn")).where(counted, col(Revision.tenant_id).in_(waiting)).subquery()
