"""Rows of a table as a queue of leased work: how the workers of a room share jobs in Postgres.

A row is due at ``next_attempt_at``. A lease counts an attempt and moves that time to its end, so the row is due again
if the worker dies. ``attempts`` is the fence: a worker whose lease another one took does not find its row any more.
Every call is part of the caller's transaction, and the work itself is done outside of any.
"""

from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from sqlmodel import Session
from sqlmodel.sql.expression import SelectOfScalar

_DOUBLINGS_MAX = 40  # far above what any longest pause allows; keeps the power small
PERMILLE = 1_000


class Leased(Protocol):
    """A row of such a table."""

    attempts: int
    next_attempt_at: Any  # a datetime; some tables have null where nothing is due


Row = TypeVar("Row", bound=Leased)


def lock_due(session: Session, due: SelectOfScalar[Row], *, limit: int = 1) -> list[Row]:
    """The first rows of a query of what is due, without those that another worker holds at this moment."""
    entity = due.column_descriptions[0]["entity"]
    return list(session.exec(due.limit(limit).with_for_update(of=entity, skip_locked=True)))


def lease(row: Leased, now: datetime, lease_s: int) -> None:
    """Begin an attempt of a locked row."""
    row.attempts += 1
    extend(row, now, lease_s)


def extend(row: Leased, now: datetime, lease_s: int) -> None:
    """Let the lease of a held row end later."""
    row.next_attempt_at = now + timedelta(seconds=lease_s)


def held(session: Session, mine: SelectOfScalar[Row], fence: int) -> Row | None:
    """The row, locked, if its last attempt has this number. None if another worker began a later one."""
    row = session.exec(mine.with_for_update().execution_options(populate_existing=True)).first()
    return row if row is not None and row.attempts == fence else None


def pause(attempts: int, *, first_ms: int, longest_ms: int, chance_permille: int = 0) -> timedelta:
    """The pause after this attempt: doubling from ``first_ms`` up to ``longest_ms``, and between the whole of that and
    a half by chance (0 to 1,000), so that many rows do not come back at once.
    """
    whole = min(longest_ms, first_ms << min(max(attempts - 1, 0), _DOUBLINGS_MAX))
    return timedelta(milliseconds=whole - whole * chance_permille // (2 * PERMILLE))
