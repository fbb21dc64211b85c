"""Moves the windows that replicas reported from Redis to Postgres, and deletes old ones there.

Reading, storing and removing are repeated until Redis holds none: a crash between the commit and the removal stores
nothing twice, because a window's key is its boot and number. Fails open: without Redis or Postgres the windows wait in
the stream, which is bounded by the agents' setting.
"""

from typing import Final, cast

import msgspec
import redis as redis_client
import sqlalchemy as sa
import structlog
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing import metrics
from billing.costs.models import CostHour, ReplicaCostWindow
from billing.costs.rates import MS_PER_HOUR
from billing.costs.settings import CostSettings
from billing.locks import serialize_decision
from core import clock, redis_keys
from core.contracts.costs import WINDOW_MS_MAX, CostWindow
from core.db import database_now, unit_of_work

_DELETE: Final = sa.text("SELECT windows, unshared FROM billing_delete_cost_windows(:days, :most)")

_log = structlog.get_logger()
_Entries = list[tuple[bytes, dict[bytes, bytes]]]


def store_windows(engine: Engine, redis: redis_client.Redis, settings: CostSettings) -> int:
    """Store everything that is in the stream now. Returns how many windows were new. Raises RedisError and
    OperationalError when a dependency is down.
    """
    stored = 0
    while entries := cast("_Entries", redis.xrange(redis_keys.COST_WINDOWS, count=settings.cost_batch_windows_max)):
        with unit_of_work(engine) as session:
            newest_ms = clock.to_ms(database_now(session)) + settings.cost_clock_skew_s_max * 1000
            windows = [window for _, fields in entries if (window := _accepted(fields, newest_ms)) is not None]
            stored += store(session, windows)
        redis.xdel(redis_keys.COST_WINDOWS, *(entry_id for entry_id, _ in entries))
    return stored


def store(session: Session, windows: list[CostWindow]) -> int:
    """Insert the windows that are not there yet. Returns how many were new."""
    if not windows:
        return 0
    rows = [msgspec.structs.asdict(window) for window in windows]
    statement = (
        insert(ReplicaCostWindow)
        .values(rows)
        .on_conflict_do_nothing()
        .returning(col(ReplicaCostWindow.replica_id), col(ReplicaCostWindow.start_ms))
    )
    new = session.connection().execute(statement).all()
    metrics.COST_WINDOWS.labels("stored").inc(len(new))
    metrics.COST_WINDOWS.labels("known").inc(len(windows) - len(new))
    _count_late(session, {(replica_id, start_ms // MS_PER_HOUR * MS_PER_HOUR) for replica_id, start_ms in new})
    return len(new)


def delete_old(engine: Engine, settings: CostSettings) -> int:
    """Delete the windows of hours that lie further back than they are kept. Returns how many. Raises Unavailable while
    another run holds the allocation.
    """
    deleted: int = 0
    while True:
        with unit_of_work(engine) as session:
            serialize_decision(session, "the cost allocation")
            found = session.connection().execute(
                _DELETE, {"days": settings.cost_windows_kept_days, "most": settings.cost_batch_windows_max}
            )
            windows, unshared = map(int, found.one())
        metrics.COST_WINDOWS.labels("deleted").inc(windows)
        if unshared:
            metrics.COST_WINDOWS_UNSHARED.inc(unshared)
            _log.error("cost windows were deleted before their hour was shared out", windows=unshared)
        deleted += windows
        if windows < settings.cost_batch_windows_max:
            return deleted


def _count_late(session: Session, hours: set[tuple[str, int]]) -> None:
    """Count the hours that were shared out before these windows of theirs arrived."""
    if not hours:
        return
    found = select(CostHour.replica_id, CostHour.hour_ms).where(
        sa.tuple_(col(CostHour.replica_id), col(CostHour.hour_ms)).in_(hours)
    )
    for replica_id, hour_ms in session.exec(found).all():
        metrics.COST_WINDOWS_LATE.inc()
        _log.error("cost windows arrived after their hour was shared out", replica_id=replica_id, hour_ms=hour_ms)


def _accepted(fields: dict[bytes, bytes], newest_ms: int) -> CostWindow | None:
    try:
        window = msgspec.json.decode(fields[b"window"], type=CostWindow)
    except (KeyError, msgspec.DecodeError) as error:
        _refuse(str(error))
        return None
    if not window.start_ms < window.end_ms <= newest_ms:
        _refuse(f"it lasts from {window.start_ms} to {window.end_ms}; now, at most {newest_ms} is possible")
        return None
    if window.end_ms - window.start_ms > WINDOW_MS_MAX:  # its machine slept, or its clock was set forward
        _refuse(f"it lasts {window.end_ms - window.start_ms} ms; at most {WINDOW_MS_MAX} are possible")
        return None
    return window


def _refuse(reason: str) -> None:
    metrics.COST_WINDOWS.labels("refused").inc()
    _log.error("cost window refused", reason=reason[:300])
