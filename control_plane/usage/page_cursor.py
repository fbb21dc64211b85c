"""The cursor ``page`` of usage and costs: where the next page begins, and what the pages are of.

A cursor holds no secret and grants nothing: the tenant comes from the key. A cursor of other parameters is refused,
because its pages would not fit those before.
"""

import base64
import binascii
import hashlib
from datetime import datetime

import msgspec

from billing.usage.buckets import UsagePosition
from core import clock
from core.errors import InvalidRequest
from core.periods import Period


class _Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    start: int
    end: int
    after: tuple[str, ...]
    parameters: str


def encode_position(position: UsagePosition, end: datetime, parameters: object) -> str:
    """The cursor of the page that begins at ``position``. ``parameters`` are those of the first page."""
    cursor = _Cursor(_seconds(position.start), _seconds(end), position.after, _digest(parameters))
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def decode_position(page: str, period: Period, parameters: object, *, groups: int) -> tuple[UsagePosition, datetime]:
    """Where the page begins and where all pages end. Raises InvalidRequest for a cursor that no page of these
    parameters returned.
    """
    try:
        text = base64.b64decode(page + "=" * (-len(page) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(text, type=_Cursor)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise _invalid("this is not the next_page of a page") from error
    if cursor.parameters != _digest(parameters):
        raise _invalid("it belongs to a page with other parameters; send those of the first page")
    if not _seconds(period.start) <= cursor.start < cursor.end or cursor.end > _seconds(period.end):
        raise _invalid("it lies outside start_time and end_time")
    if len(cursor.after) not in (0, groups) or any("\0" in each for each in cursor.after):
        raise _invalid("this is not the next_page of a page")
    return UsagePosition(clock.from_ms(cursor.start * 1000), cursor.after), clock.from_ms(cursor.end * 1000)


def _invalid(problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"page: {problem}. Leave it out to start at the first page.", code="invalid_cursor", param="page"
    )


def _digest(parameters: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parameters)).hexdigest()[:16]


def _seconds(instant: datetime) -> int:
    return int(instant.timestamp())
