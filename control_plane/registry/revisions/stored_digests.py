"""References to a stored digest, and the lock for changing them. Several revisions, also of several tenants, may have
the same digest; it is stored once and deleted with the last of them.

A revision becomes a reference only under the digest's lock, after a check that the object is complete. An object is
deleted only under the same lock, after a check that no revision refers to it. Neither can overtake the other.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, func, text
from sqlmodel import Session, col, select

from adapters.manifest import AdapterManifest, is_digest
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from control_plane.registry.models import Revision
from core.db import unit_of_work
from core.errors import Unavailable

_LOCK_WAIT_S: Final = 10
_LOCK_POLL_S: Final = 0.05


@contextmanager
def digest_lock(engine: Engine, digest: str) -> Iterator[None]:
    """Hold the lock of a digest among all workers. The lock belongs to the connection, so no transaction stays open,
    and Postgres releases it when the process dies. Raises Unavailable when another worker holds it for too long.
    """
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is not a digest")
    number = {"number": int.from_bytes(bytes.fromhex(digest[:16]), signed=True)}
    deadline = time.monotonic() + _LOCK_WAIT_S
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not _acquired(connection, number):
            if time.monotonic() > deadline:
                raise Unavailable(f"Another worker has held {digest} for {_LOCK_WAIT_S} s. Try again.")
            time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:number)"), number)


def count_references(session: Session, digest: str, *, except_revision_id: str = "") -> int:
    """How many revisions, except the given one, need the stored object: ready, being decided, or in quarantine."""
    rows = select(func.count()).select_from(Revision)
    return session.exec(
        rows.where(
            col(Revision.checked_digest) == digest,
            col(Revision.stored_removed_at).is_(None),
            col(Revision.id) != except_revision_id,
        )
    ).one()


def remove_unrecorded(engine: Engine, store: RevisionStore, digest: str) -> None:
    """Delete an object that was stored for a revision which could not be recorded, unless another revision refers to
    the same digest. Takes the digest's lock.
    """
    with digest_lock(engine, digest):
        with unit_of_work(engine) as session:
            needed = count_references(session, digest)
        if not needed:
            store.remove_revision(digest)


def is_complete(store: RevisionStore, manifest: AdapterManifest) -> bool:
    """Whether the store has every file of the revision with the right size, and its manifest."""
    prefix = revision_prefix(manifest.digest)
    sizes = ((store.bucket.head(prefix + file.path), file.size_bytes) for file in manifest.files)
    return all(found == wanted for found, wanted in sizes) and store.has_revision(manifest.digest)


def _acquired(connection: Connection, number: dict[str, int]) -> bool:
    return bool(connection.execute(text("SELECT pg_try_advisory_lock(:number)"), number).scalar_one())
