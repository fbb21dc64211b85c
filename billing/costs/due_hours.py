"""Which hours of which replicas are not shared out yet, read from the stored windows.

A replica's hours are shared out in order, so one whose next hour has no rate waits with all its hours, and stops no
other: a replica without a rate is not free. Its later hours are not read.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.costs.rates import MS_PER_HOUR
from billing.costs.settings import CostSettings
from core import clock, fields
from core.db import database_now
from core.fields import about

# Replicas by a loose index scan, with the first window of each after its last hour that was shared out.
_NEXT: Final = """
WITH RECURSIVE replicas AS (
    (SELECT replica_id FROM replica_cost_windows ORDER BY replica_id LIMIT 1)
    UNION ALL
    SELECT (SELECT w.replica_id FROM replica_cost_windows w WHERE w.replica_id > r.replica_id
            ORDER BY w.replica_id LIMIT 1)
    FROM replicas r WHERE r.replica_id IS NOT NULL
), waiting AS (
    SELECT r.replica_id, first.base_model, first.rank_max, first.pool, first.start_ms, EXISTS (
        SELECT FROM replica_rates p WHERE p.base_model = first.base_model AND p.rank_max = first.rank_max
            AND p.pool IN ('', first.pool) AND date_trunc('milliseconds', p.effective_from)
                <= 'epoch'::timestamptz + first.start_ms * interval '1 millisecond'
    ) AS has_rate
    FROM replicas r
    CROSS JOIN LATERAL (
        SELECT coalesce(max(c.hour_ms) + 3600000, 0) AS since FROM cost_hours c WHERE c.replica_id = r.replica_id
    ) done
    CROSS JOIN LATERAL (
        SELECT w.base_model, w.rank_max, w.pool, w.start_ms FROM replica_cost_windows w
        WHERE w.replica_id = r.replica_id AND w.start_ms >= done.since AND w.start_ms < :before_ms
        ORDER BY w.start_ms, w.boot_id LIMIT 1
    ) first
)
"""
_DUE: Final = """
SELECT n.replica_id, h.hour_ms
FROM waiting n CROSS JOIN LATERAL (
    SELECT DISTINCT w.start_ms / 3600000 * 3600000 AS hour_ms FROM replica_cost_windows w
    WHERE w.replica_id = n.replica_id AND w.start_ms >= greatest(n.start_ms, :after_ms) AND w.start_ms < :before_ms
) h
WHERE n.has_rate ORDER BY h.hour_ms, n.replica_id LIMIT :limit
"""
_FIRST: Final = "SELECT min(start_ms) FROM waiting WHERE has_rate"
_UNRATED: Final = """
SELECT n.replica_id, n.base_model, n.rank_max, n.pool FROM waiting n
WHERE NOT n.has_rate AND EXISTS (
    SELECT FROM replica_cost_windows w
    WHERE w.replica_id = n.replica_id AND w.start_ms >= greatest(n.start_ms, :after_ms) AND w.start_ms < :before_ms
)
ORDER BY n.base_model, n.rank_max, n.pool, n.replica_id
"""


class UnratedReplicas(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Replicas that wait for a rate of their pool or of their placement group: their time is not in the costs, but what
    they earned is revenue.
    """

    base_model: Annotated[str, fields.BASE_MODEL]
    rank_max: Annotated[int, fields.RANK_MAX]
    pool: Annotated[str, about("Pool of the replicas; empty for those of no pool.")]


def due(session: Session, *, before_ms: int, limit: int, after_ms: int = 0) -> list[tuple[str, int]]:
    """The replicas and hours in ``[after_ms, before_ms)`` that can be shared out, the oldest ``limit`` of them."""
    rows = _read(session, _DUE, before_ms=before_ms, after_ms=after_ms, limit=limit)
    return [(replica_id, hour_ms) for replica_id, hour_ms in rows]


def unrated(session: Session, *, before_ms: int, after_ms: int = 0) -> dict[str, UnratedReplicas]:
    """The replicas whose hours in ``[after_ms, before_ms)`` wait for a rate, with what the rate must be of."""
    rows = _read(session, _UNRATED, before_ms=before_ms, after_ms=after_ms)
    return {
        replica_id: UnratedReplicas(base_model=model, rank_max=rank_max, pool=pool)
        for replica_id, model, rank_max, pool in rows
    }


def allocation_border_ms(session: Session, settings: CostSettings) -> int:
    """The end of the last hour that ended long enough ago to be shared out."""
    now_ms = clock.to_ms(database_now(session))
    return (now_ms - settings.cost_allocation_delay_s * 1000) // MS_PER_HOUR * MS_PER_HOUR


def shared_until_ms(session: Session, settings: CostSettings) -> int:
    """Every hour before it is shared out, apart from those of replicas that wait for a rate."""
    border_ms = allocation_border_ms(session, settings)
    first: int | None = _read(session, _FIRST, before_ms=border_ms)[0][0]
    return border_ms if first is None else first // MS_PER_HOUR * MS_PER_HOUR


def _read(session: Session, what: str, **bounds: int) -> Sequence[Any]:  # rows of several types
    return session.connection().execute(sa.text(_NEXT + what), bounds).all()
