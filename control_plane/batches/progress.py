"""How far batches have got, and when they should end. Pure functions over counts and instants."""

from datetime import datetime, timedelta
from typing import Final

from control_plane.batches.models import BatchRow

_LINES_MIN: Final = 20
"""Lines from which on a batch's own speed says something."""
_LATE_SHARE: Final = 4
"""Without a speed, a batch is in danger in the last quarter of its time."""


def line_time(done: int, since: datetime | None, now: datetime) -> timedelta | None:
    """The mean time from one line's end to the next; None while too few lines have ended."""
    if since is None or done < _LINES_MIN:
        return None
    return (now - since) / done


def estimated_end(
    left: int, ahead: int, per_line: timedelta | None, *, now: datetime, expires_at: datetime
) -> datetime:
    """When the last of ``left`` lines should end, after ``ahead`` lines of other batches: never after the deadline,
    which is also the answer where no speed is known.
    """
    if per_line is None:
        return expires_at
    return min(expires_at, now + (left + ahead) * per_line)


def in_danger(row: BatchRow, *, since: datetime, done_before: int, now: datetime, spare_percent: int) -> bool:
    """Whether a batch may miss its deadline: at the speed of the lines since ``since``, when ``done_before`` were done,
    less than ``spare_percent`` of the time until then would be left. Without a speed, in the last quarter of its time.
    """
    done, time_left = row.completed + row.failed, row.expires_at - now
    if (per_line := line_time(done - done_before, since, now)) is None:
        return time_left < (row.expires_at - row.created_at) / _LATE_SHARE
    return (row.total - done) * per_line * 100 > time_left * (100 - min(spare_percent, 99))
