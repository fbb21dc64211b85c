"""What the snapshots are made of: for each kind, how its room's present state becomes published fields.

Publishing knows no room; the rooms' readers are handed to it (see ``control_plane.projections``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from sqlmodel import Session

from core.contracts.snapshots import SnapshotKind


@dataclass(frozen=True, kw_only=True)
class Published:
    """One field's value as it stands in Postgres now: encoded, or None where gateways must not have it. ``blobs`` are
    content-addressed bytes that the value refers to, by SHA-256.
    """

    value: str | None
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Reads one kind: ``one`` field now, or ``every`` field that has a value."""

    one: Callable[[Session, str], Published]
    every: Callable[[Session], Iterator[tuple[str, Published]]]


Projections = Mapping[SnapshotKind, Projection]


def published(value: msgspec.Struct | None, blobs: Mapping[str, bytes] | None = None) -> Published:
    """A struct of ``core.contracts``, or None, as it is published."""
    return Published(value=None if value is None else msgspec.json.encode(value).decode(), blobs=blobs or {})
