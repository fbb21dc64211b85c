"""What other rooms call to have a change published: a note in the outbox, in the transaction of the change.

The note names a field of a snapshot, not its value: whoever publishes it reads the value as it is then.
"""

from collections.abc import Iterable

from sqlmodel import Session

from control_plane.publishing.models import OutboxChange
from core.contracts.snapshots import SnapshotKind


def publish_change(session: Session, kind: SnapshotKind, field: str) -> OutboxChange:
    """Have gateways learn of this field of this snapshot, soon after the caller's transaction commits.
    IdempotentRequest flushed, the note has the id by which ``acknowledge`` waits for it.
    """
    note = OutboxChange(kind=kind, field=field)
    session.add(note)
    return note


def publish_changes(session: Session, kind: SnapshotKind, fields: Iterable[str]) -> None:
    """The same for many fields."""
    session.add_all(OutboxChange(kind=kind, field=field) for field in fields)
