"""Removes stored revisions of deleted adapters and of rejected revisions after their quarantine. No route names them in
the meantime, so no request can reach them; an operator still can.
"""

from datetime import timedelta

import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from adapters.object_store.revision_store import RevisionStore
from control_plane import metrics
from control_plane.registry.models import AdapterRevocation, Revision
from control_plane.registry.revisions import stored_digests
from control_plane.registry.revocations import service as revocations
from control_plane.settings import WorkerSettings
from core.db import database_now, unit_of_work


class StoredRevisionCleanup:
    """One round removes a batch. After a crash the next round removes the rest; deleting twice is no error. While the
    store is unavailable, nothing is marked as removed.
    """

    def __init__(self, engine: Engine, store: RevisionStore, settings: WorkerSettings) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings

    def run_once(self) -> bool:
        """Remove the due revisions, then mark the revocations that are complete. Returns whether more may be due."""
        with unit_of_work(self._engine) as session:
            due = self._due(session)
        for revision_id, digest in due:
            self._remove(revision_id, digest)
        with unit_of_work(self._engine) as session:
            self._close(session)
        return len(due) == self._settings.cleanup_batch_max

    def _remove(self, revision_id: str, digest: str) -> None:
        with stored_digests.digest_lock(self._engine, digest):
            with unit_of_work(self._engine) as session:
                needed = stored_digests.count_references(session, digest, except_revision_id=revision_id)
            if not needed:
                self._store.remove_revision(digest)
            with unit_of_work(self._engine) as session:
                session.get_one(Revision, revision_id).stored_removed_at = database_now(session)
        metrics.REMOVED_REVISIONS.labels("shared" if needed else "deleted").inc()
        structlog.get_logger().info("stored revision removed", revision_id=revision_id, digest=digest, shared=needed)

    def _due(self, session: Session) -> list[tuple[str, str]]:
        """Stored revisions whose quarantine is over: rejected, or of a deleted adapter that every replica has
        unloaded.
        """
        past = database_now(session) - timedelta(seconds=self._settings.revocation_quarantine_s)
        unloaded = select(AdapterRevocation.adapter_id).where(
            AdapterRevocation.reason == "deleted", col(AdapterRevocation.unloaded_at) <= past
        )
        rejected = (col(Revision.status) == "rejected") & (col(Revision.decided_at) <= past)
        rows = (
            select(Revision.id, Revision.checked_digest)
            .where(col(Revision.checked_digest).is_not(None), col(Revision.stored_removed_at).is_(None))
            .where(rejected | col(Revision.adapter_id).in_(unloaded))
            .order_by(col(Revision.id))
            .limit(self._settings.cleanup_batch_max)
        )
        return [(revision_id, digest) for revision_id, digest in session.exec(rows) if digest is not None]

    def _close(self, session: Session) -> None:
        """Mark the revocations of deleted adapters that have no stored revision left."""
        remaining = select(Revision.id).where(
            Revision.adapter_id == AdapterRevocation.adapter_id,
            col(Revision.checked_digest).is_not(None),
            col(Revision.stored_removed_at).is_(None),
        )
        rows = revocations.open_revocations().where(
            AdapterRevocation.reason == "deleted",
            col(AdapterRevocation.unloaded_at).is_not(None),
            col(AdapterRevocation.removed_at).is_(None),
            ~remaining.exists(),
        )
        for row in session.exec(rows.with_for_update(skip_locked=True)).all():
            row.removed_at = database_now(session)
            session.add(row)
