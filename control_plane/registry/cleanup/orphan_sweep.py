"""Removes stored revisions that no row knows: what a worker leaves that dies between storing one and recording it, and
whose upload nobody validates again.

Safe against whoever is storing the same digest now: it is removed under the digest's lock, and recorded under it only
after a look that it is whole.
"""

from datetime import timedelta
from itertools import islice

import structlog
from sqlalchemy import Engine
from sqlmodel import col, select

from adapters.object_store.revision_store import AdapterStore
from control_plane.registry.models import Revision
from control_plane.registry.revisions import stored_digests
from control_plane.settings import WorkerSettings
from core import clock
from core.db import unit_of_work


class OrphanSweep:
    """Goes round all that is stored, a batch a step. A round that is cut short begins anew."""

    def __init__(self, engine: Engine, store: AdapterStore, settings: WorkerSettings) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings
        self._round = store.stored()

    def run_once(self) -> bool:
        """Look at the next batch; whether there is more of this round."""
        try:
            batch = list(islice(self._round, self._settings.cleanup_batch_max))
        except Exception:
            self._round = self._store.stored()
            raise
        before = clock.now() - timedelta(seconds=self._settings.orphan_age_s)
        for digest in self._unknown([digest for digest, written_at in batch if written_at < before]):
            structlog.get_logger().info("a stored revision that no row knows is removed", digest=digest)
            stored_digests.remove_unrecorded(self._engine, self._store, digest)
        if len(batch) == self._settings.cleanup_batch_max:
            return True
        self._round = self._store.stored()
        return False

    def _unknown(self, digests: list[str]) -> list[str]:
        known = select(Revision.checked_digest).where(
            col(Revision.checked_digest).in_(digests), col(Revision.stored_removed_at).is_(None)
        )
        with unit_of_work(self._engine) as session:
            needed = set(session.exec(known))
        return [digest for digest in digests if digest not in needed]
