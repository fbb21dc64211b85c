"""The outbox: other rooms call it to have a change published, in the transaction of the change.

A row names a field of a snapshot, not its value. The relay reads the current value when it publishes.
"""

from collections.abc import Iterable

from sqlmodel import Session

from control_plane.publishing import request_changes
from control_plane.publishing.models import OutboxChange
from core.contracts.snapshots import SnapshotKind


def publish_change(session: Session, kind: SnapshotKind, field: str) -> OutboxChange:
    """Have this field of this snapshot published soon after the caller's transaction commits. Once flushed, the
    returned row has the id that ``gateway_ack`` waits for.
    """
    change = OutboxChange(kind=kind, field=field)
    session.add(change)
    request_changes.note(change)
    return change


def publish_changes(session: Session, kind: SnapshotKind, fields: Iterable[str]) -> None:
    """Like ``publish_change``, for many fields."""
    for field in fields:
        publish_change(session, kind, field)
