"""Finds what a lost answer may have created: lists are read to a limit, and exactly one object may carry our id.

Fails closed: a lookup that cannot be certain raises StripeLookupInconclusive, and nothing may be sent after it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from billing.stripe.errors import StripeLookupInconclusive
from billing.stripe.objects import our_id_of

_Given = TypeVar("_Given")
_Value = TypeVar("_Value")
_TYPES_MAX: Final = 20
_CLOCK_SLACK: Final = timedelta(minutes=10)  # between our clock and Stripe's, when a lost object is searched by time


def with_our_id(listed: Iterable[_Given], our_id: str, read: Callable[[_Given], _Value], most: int) -> _Value | None:
    """The one object that carries our id. Raises StripeLookupInconclusive."""
    found = the_only([each for each in at_most(listed, most) if our_id_of(each) == our_id], our_id)
    return None if found is None else read(found)


def the_only(found: Sequence[_Given], our_id: str) -> _Given | None:
    """The one of the objects with our id, if there is any. Raises StripeLookupInconclusive for several."""
    if len(found) > 1:
        ids = ", ".join(str(getattr(each, "id", "")) for each in found[:5])
        raise StripeLookupInconclusive(f"{our_id} stands in the metadata of several objects at Stripe: {ids}")
    return found[0] if found else None


def at_most(listed: Iterable[_Given], most: int) -> Iterator[_Given]:
    """The objects of a list. Raises StripeLookupInconclusive where it has more than ``most``."""
    for number, each in enumerate(listed):
        if number >= most:
            raise StripeLookupInconclusive(
                f"more than {most} objects to read at Stripe; raise TENORA_STRIPE_LOOKUP_OBJECTS_MAX"
            )
        yield each


def created_between(since: datetime, until: datetime) -> Any:
    """Creation times as Stripe's filter; each list has a type of its own for the same two fields."""
    return {"gte": max(0, int((since - _CLOCK_SLACK).timestamp())), "lte": int((until + _CLOCK_SLACK).timestamp())}


def in_parts(types: Sequence[str]) -> Iterator[list[str]]:
    """Types of events in lists as long as one call may filter by (https://docs.stripe.com/api/events/list)."""
    for start in range(0, len(types), _TYPES_MAX):
        yield list(types[start : start + _TYPES_MAX])
