"""Cursor paging for every list: newest first, with a cursor that is opaque to callers and validated on return."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Generic, Protocol, TypeVar

import msgspec
from litestar.params import QueryParameter
from sqlalchemy.orm import Mapped
from sqlmodel import Session
from sqlmodel.sql.expression import SelectOfScalar

from core.db import newest_first
from core.errors import InvalidRequest
from core.fields import about


class _HasId(Protocol):
    id: str


T = TypeVar("T")
Row = TypeVar("Row", bound=_HasId)

PageLimit = Annotated[int, QueryParameter(ge=1, le=200, description="Largest number of items to return.")]
PageCursor = Annotated[
    str | None, QueryParameter(max_length=200, description="The `next_cursor` of the previous page.")
]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. ``next_cursor`` is null on the last page."""

    data: Annotated[Sequence[T], about("The items.")]
    next_cursor: Annotated[str | None, about("Cursor of the next page; null on the last one.")] = None


def encode_cursor(last_id: str) -> str:
    """The cursor that continues after the item with this id."""
    return base64.urlsafe_b64encode(f"after:{last_id}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """The id after which a cursor continues. Raises InvalidRequest for a cursor that no list returned."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        text = ""
    last_id = text.removeprefix("after:")
    if last_id == text or not _ID.fullmatch(last_id) or encode_cursor(last_id) != cursor:
        raise InvalidRequest(
            "cursor: this is not the next_cursor of a list. Leave it out to start at the first page.",
            code="invalid_cursor",
            param="cursor",
        )
    return last_id


def page_from(
    read: Callable[..., Sequence[T]], *, cursor: str | None, limit: int, key: Callable[[T], str] = attrgetter("id")
) -> Page[T]:
    """One page of what ``read`` lists: ``limit`` items at most, ``after`` the one with this ``key``."""
    found = read(after=decode_cursor(cursor), limit=limit + 1)
    shown = found[:limit]
    return Page(data=shown, next_cursor=encode_cursor(key(shown[-1])) if len(found) > limit else None)


def page_of(
    session: Session,
    rows: SelectOfScalar[Row],
    id_column: Mapped[str],
    view: Callable[[Row], T],
    *,
    cursor: str | None,
    limit: int,
) -> Page[T]:
    """One page of ``rows``, newest id first. The caller's select must already be limited to rows that the tenant may
    see.
    """

    def read(*, after: str | None, limit: int) -> Sequence[Row]:
        return session.exec(newest_first(rows, id_column, after=after, limit=limit)).all()

    page = page_from(read, cursor=cursor, limit=limit)
    return Page(data=[view(row) for row in page.data], next_cursor=page.next_cursor)
