"""The history of pools' targets: one row for each change, with its inputs. The newest row of a pool is its target, so
that a new leader, and a Redis that has lost its data, change none.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlmodel import Session, col, delete, func, select

from control_plane.pools.models import PoolDecision, PoolRow
from control_plane.pools.schemas import PoolDecisionView
from core.errors import InvalidRequest, NotFound
from core.struct_types import view_of

_KEPT_MAX: Final = 1_000  # of each pool
_ID_DIGITS_MAX: Final = 18


def newest(session: Session, pools: Collection[str]) -> dict[str, PoolDecision]:
    """The last decision of each of these pools that has one."""
    last = select(func.max(PoolDecision.id)).where(col(PoolDecision.pool).in_(pools)).group_by(PoolDecision.pool)
    return {row.pool: row for row in session.exec(select(PoolDecision).where(col(PoolDecision.id).in_(last))).all()}


def record(
    session: Session, pool: str, before: int, replicas: int, reason: str, inputs: dict[str, Any]
) -> PoolDecision:
    """Store a change, and delete the pool's oldest decisions above the number that is kept."""
    row = PoolDecision(pool=pool, replicas_before=before, replicas=replicas, reason=reason, inputs=inputs)
    session.add(row)
    session.flush()
    mine = select(PoolDecision.id).where(PoolDecision.pool == pool).order_by(col(PoolDecision.id).desc())
    oldest = mine.offset(_KEPT_MAX).limit(1).scalar_subquery()
    session.exec(delete(PoolDecision).where(col(PoolDecision.pool) == pool, col(PoolDecision.id) <= oldest))
    return row


def decisions(session: Session, pool: str, *, after: str | None, limit: int) -> Sequence[PoolDecisionView]:
    """Decisions of a pool, the newest first. Raises NotFound and InvalidRequest."""
    if session.get(PoolRow, pool) is None:
        raise NotFound(f"There is no pool {pool[:100]!r}. GET /api/v1/admin/pools lists them.", code="pool_not_found")
    wanted = select(PoolDecision).where(PoolDecision.pool == pool)
    if after is not None:
        if not (after.isdecimal() and len(after) <= _ID_DIGITS_MAX):
            raise InvalidRequest("cursor: this is not the cursor of a pool's decisions.", code="invalid_cursor")
        wanted = wanted.where(col(PoolDecision.id) < int(after))
    rows = session.exec(wanted.order_by(col(PoolDecision.id).desc()).limit(limit)).all()
    return [view_of(row, PoolDecisionView) for row in rows]
