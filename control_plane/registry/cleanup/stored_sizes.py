"""Reads the sizes of revisions that were stored before sizes were recorded.

Until a revision has its size, its storage is not charged.
"""

import tempfile
from pathlib import Path

import structlog
from sqlalchemy import Engine
from sqlmodel import col, select

from adapters.manifest import MANIFEST_FILE
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import ObjectDamaged, ObjectMissing
from control_plane.registry.models import Revision
from control_plane.settings import WorkerSettings
from core.db import unit_of_work


class StoredSizes:
    """One round reads a batch of manifests, oldest first, after the last one that it read."""

    def __init__(self, engine: Engine, store: RevisionStore, settings: WorkerSettings) -> None:
        self._engine = engine
        self._store = store
        self._batch_max = settings.cleanup_batch_max
        self._after = ""

    def run_once(self) -> bool:
        """Read and store a batch of sizes. Returns whether more may be missing. A missing or damaged manifest is
        logged, and read again after a restart. Raises Unavailable when the store fails.
        """
        missing = (
            select(Revision.id, Revision.checked_digest)
            .where(col(Revision.checked_digest).is_not(None), col(Revision.stored_bytes).is_(None))
            .where(col(Revision.stored_removed_at).is_(None), col(Revision.id) > self._after)
            .order_by(col(Revision.id))
            .limit(self._batch_max)
        )
        with unit_of_work(self._engine) as session:
            rows = session.exec(missing).all()
        with tempfile.TemporaryDirectory() as folder:
            for revision_id, digest in rows:
                assert digest is not None, "the query excludes revisions that were not stored"
                self._read(revision_id, digest, Path(folder))
                self._after = revision_id
        return len(rows) == self._batch_max

    def _read(self, revision_id: str, digest: str, folder: Path) -> None:
        try:
            size_bytes = self._store.download_manifest(digest, folder / MANIFEST_FILE).size_bytes
        except (ObjectDamaged, ObjectMissing) as error:
            structlog.get_logger().warning("size of a stored revision unknown", digest=digest, error=str(error))
            return
        with unit_of_work(self._engine) as session:
            session.get_one(Revision, revision_id).stored_bytes = size_bytes
