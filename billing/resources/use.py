"""How much of a resource was used in a span of time: byte-seconds of storage and slot-milliseconds of pins. Pure.

Both ends of an interval are cut to whole seconds or milliseconds in the same way, so the parts of an interval in
neighboring hours add up to the whole.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

import msgspec

HOUR: Final = timedelta(hours=1)
_SECOND: Final = timedelta(seconds=1)
_MS: Final = timedelta(milliseconds=1)


class ResourceOwner(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Whose use it is. ``rank_class`` 0 stands for none."""

    tenant_id: str
    adapter_id: str
    base_model: str
    rank_class: int


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner used: byte-seconds, slot-milliseconds or loads."""

    owner: ResourceOwner
    units: int


class StoredRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision whose files the platform keeps. Revisions with the same digest are stored once."""

    owner: ResourceOwner
    revision_id: str
    digest: str
    stored_bytes: int
    begins: datetime
    ends: datetime | None


class PinnedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One engine name that the replicas of a pool keep in memory."""

    owner: ResourceOwner
    begins: datetime
    ends: datetime | None


def storage_in(hour: datetime, revisions: Iterable[StoredRevision]) -> list[ResourceUse]:
    """The byte-seconds of an hour. What a tenant has stored several times under one digest counts once, for the oldest
    revision that exists at the time; what several tenants have stored counts for each of them.
    """
    units: Counter[ResourceOwner] = Counter()
    in_order = sorted(revisions, key=lambda each: (each.owner.tenant_id, each.digest, each.revision_id))
    for _, copies in groupby(in_order, key=lambda each: (each.owner.tenant_id, each.digest)):
        covered = 0  # a bit for each second of the hour
        for copy in copies:
            start, end = (_steps(hour, hour + HOUR, at, _SECOND) for at in (copy.begins, copy.ends))
            seconds = (1 << max(start, end)) - (1 << start)
            units[copy.owner] += copy.stored_bytes * (seconds & ~covered).bit_count()
            covered |= seconds
    return _uses(units)


def pins_in(start: datetime, end: datetime, pins: Iterable[PinnedSlot]) -> list[ResourceUse]:
    """The slot-milliseconds of a span of time."""
    units: Counter[ResourceOwner] = Counter()
    for pin in pins:
        begins, ends = (_steps(start, end, at, _MS) for at in (pin.begins, pin.ends))
        units[pin.owner] += max(0, ends - begins)
    return _uses(units)


def _steps(start: datetime, end: datetime, at: datetime | None, step: timedelta) -> int:
    """Whole steps from the start to an instant, which is moved into the span. None: it has not come yet."""
    return ((end if at is None else min(max(at, start), end)) - start) // step


def _uses(units: Counter[ResourceOwner]) -> list[ResourceUse]:
    return [ResourceUse(owner=owner, units=units[owner]) for owner in sorted(units) if units[owner]]
