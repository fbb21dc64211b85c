"""The changes that one request of the API has recorded for publishing, so that its answer can wait for gateways."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control_plane.publishing.models import OutboxChange

_recording: ContextVar["RequestChanges | None"] = ContextVar("request_changes", default=None)


class RequestChanges:
    """The outbox rows of one request. Handlers add them in worker threads, which share this object."""

    def __init__(self) -> None:
        self._rows: list[OutboxChange] = []

    def add(self, row: OutboxChange) -> None:
        """Remember a row, which gets its id when its transaction is flushed."""
        self._rows.append(row)

    @property
    def last_id(self) -> int | None:
        """The id of the row that the relay publishes last. None without a row that was stored."""
        return max(((row.bulk, row.id) for row in self._rows if row.id is not None), default=(False, None))[1]


@contextmanager
def recorded() -> Iterator[RequestChanges]:
    """The changes that are recorded within the block, also in threads that it starts."""
    changes = RequestChanges()
    token = _recording.set(changes)
    try:
        yield changes
    finally:
        _recording.reset(token)


def note(row: OutboxChange) -> None:
    """Remember the row for the current request, if there is one."""
    if (changes := _recording.get()) is not None:
        changes.add(row)
