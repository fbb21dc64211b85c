"""Removes stored revisions without a row in the database. A worker leaves one when it dies between storing a revision
and recording it, and no other worker validates the upload again.

A concurrent worker that stores the same digest is safe: the object is removed under the digest's lock, and a revision
is recorded under the same lock only after a check that the object is complete.
"""

from datetime import timedelta
from itertools import islice

import structlog
from sqlalchemy import Engine
from sqlmodel import col, select

from adapters.object_store.revision_store import RevisionStore
from control_plane.registry.models import Revision
from control_plane.registry.revisions import stored_digests
from control_plane.settings import WorkerSettings
from core import clock
from core.db import unit_of_work


class OrphanSweep:
    """Sweeps the object store in batches, one a round of the loop. An interrupted sweep starts again from the
    beginning.
    """

    def __init__(self, engine: Engine, store: RevisionStore, settings: WorkerSettings) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings
        self._listing = store.stored()

    def run_once(self) -> bool:
        """Check the next batch. Returns whether the sweep has more."""
        try:
            batch = list(islice(self._listing, self._settings.cleanup_batch_max))
        except Exception:
            self._listing = self._store.stored()
            raise
        before = clock.now() - timedelta(seconds=self._settings.orphan_age_s)
        for digest in self._unreferenced([digest for digest, written_at in batch if written_at < before]):
            structlog.get_logger().info("orphaned stored revision removed", digest=digest)
            stored_digests.remove_unrecorded(self._engine, self._store, digest)
        if len(batch) == self._settings.cleanup_batch_max:
            return True
        self._listing = self._store.stored()
        return False

    def _unreferenced(self, digests: list[str]) -> list[str]:
        known = select(Revision.checked_digest).where(
            col(Revision.checked_digest).in_(digests), col(Revision.stored_removed_at).is_(None)
        )
        with unit_of_work(self._engine) as session:
            needed = set(session.exec(known))
        return [digest for digest in digests if digest not in needed]
