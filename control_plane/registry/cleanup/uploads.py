"""Removes the leftovers of uploads: announcements that were never completed, the objects and open multipart uploads of
decided revisions, and multipart uploads without a row.

A tenant's files are removed only after every presigned URL for them has expired; ``revisions/uploads`` signs none that
outlives the announcement by more than one lifetime. Only a PUT that started earlier and is still running can leave an
object, and no process reads it.
"""

from datetime import timedelta

import structlog
from sqlalchemy import Engine, func
from sqlmodel import Session, col, select

from adapters.object_store.upload_store import UploadStore
from control_plane.registry.models import Revision
from control_plane.registry.review import validation_jobs
from core import clock
from core.db import unit_of_work


class UploadCleanup:
    """One round removes a batch. After a crash the next round removes the rest; deleting twice is no error."""

    def __init__(
        self, engine: Engine, store: UploadStore, *, upload_expires_s: int, url_expires_s: int, batch_max: int
    ) -> None:
        self._engine = engine
        self._store = store
        self._upload_expires_s = max(upload_expires_s, url_expires_s)
        self._url_expires_s = url_expires_s
        self._batch_max = batch_max

    def run_once(self) -> bool:
        """Reject expired announcements, remove the objects of decided revisions, and abort multipart uploads that are
        older than any announcement which may still be completed. Returns whether more may be due.
        """
        with unit_of_work(self._engine) as session:
            expired = validation_jobs.reject_expired(session, expires_s=self._upload_expires_s, limit=self._batch_max)
        with unit_of_work(self._engine) as session:
            decided = self._decided(session)
        for revision_id in decided:
            self._store.remove(revision_id)
            with unit_of_work(self._engine) as session:
                session.get_one(Revision, revision_id).uploads_removed_at = session.exec(select(func.now())).one()
        before = clock.now() - timedelta(seconds=self._upload_expires_s)
        abandoned = self._store.abort_abandoned(before, limit=self._batch_max)
        if abandoned:
            structlog.get_logger().info("abandoned multipart uploads aborted", uploads=abandoned)
        return max(expired, len(decided), abandoned) == self._batch_max

    def _decided(self, session: Session) -> list[str]:
        past_urls = func.now() - timedelta(seconds=self._url_expires_s)
        rows = (
            select(Revision.id)
            .where(
                col(Revision.uploads_removed_at).is_(None),
                col(Revision.created_at) < past_urls,
                col(Revision.status).in_(("ready", "rejected")),
            )
            .order_by(col(Revision.created_at))
            .limit(self._batch_max)
        )
        return list(session.exec(rows))
