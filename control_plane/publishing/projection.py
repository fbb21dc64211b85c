"""The types of a published snapshot: for each kind, a reader that turns a room's current state into published fields.

This room knows no other room; it receives their readers (see ``control_plane.projections``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlmodel import Session

from core.contracts.snapshots import SnapshotKind


@dataclass(frozen=True, kw_only=True)
class Published:
    """The current value of one field in Postgres: encoded, or None where it must not be published. ``blobs`` are the
    content-addressed bytes that the value refers to, by SHA-256.
    """

    value: str | None
    blobs: Mapping[str, bytes]


UNPUBLISHED: Final = Published(value=None, blobs={})


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Reads one kind of snapshot: some fields, of which those without a value may be missing, or ``every`` field that
    has a value.
    """

    some: Callable[[Session, Sequence[str]], Mapping[str, Published]]
    every: Callable[[Session], Iterator[tuple[str, Published]]]


Projections = Mapping[SnapshotKind, Projection]


def published(value: msgspec.Struct | None, blobs: Mapping[str, bytes] | None = None) -> Published:
    """Encode a struct of ``core.contracts``, or None, for publication."""
    return Published(value=None if value is None else msgspec.json.encode(value).decode(), blobs=blobs or {})
