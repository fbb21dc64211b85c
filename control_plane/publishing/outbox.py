"""The outbox: other rooms call it to have a change published, in the transaction of the change.

A row names a field of a snapshot, not its value. The relay reads the current value when it publishes.
"""

from collections.abc import Sequence

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from control_plane.publishing import request_changes
from control_plane.publishing.models import OutboxChange
from core import clock
from core.contracts.snapshots import SnapshotKind
from core.db import unit_of_work

_AGE = sa.text("SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0) FROM outbox")


def publish_change(session: Session, kind: SnapshotKind, field: str) -> OutboxChange:
    """Have this field of this snapshot published soon after the caller's transaction commits, before all bulk changes.
    Once flushed, the returned row has the id that ``gateway_ack`` waits for.
    """
    return _add(session, OutboxChange(kind=kind, field=field))


def publish_bulk(session: Session, kind: SnapshotKind, fields: Sequence[str]) -> None:
    """Have many fields published in their order after all single changes, also those that are made while these wait: a
    revoked key does not wait for 10,000 new ceilings.
    """
    if len(fields) > 1:
        rows = [{"kind": kind, "field": field, "bulk": True, "created_at": clock.now()} for field in fields[:-1]]
        session.execute(sa.insert(OutboxChange), rows)
    for last in fields[-1:]:
        _add(session, OutboxChange(kind=kind, field=last, bulk=True))


def _add(session: Session, change: OutboxChange) -> OutboxChange:
    session.add(change)
    request_changes.note(change)
    return change


def outbox_age_s(engine: sa.Engine) -> float:
    """Seconds since the oldest unpublished change was made; 0 without one, NaN while Postgres does not answer."""
    try:
        with unit_of_work(engine) as session:
            return max(0.0, float(session.connection().execute(_AGE).scalar_one()))
    except SQLAlchemyError as error:
        structlog.get_logger().warning("age of the outbox unknown", error=repr(error))
        return float("nan")
