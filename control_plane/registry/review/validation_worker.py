"""One round of the validation loop: claim a revision, keep its lease during validation, and record the verdict."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adapters.ingest import ingest
from adapters.object_store.revision_store import RevisionStore
from adapters.report import ValidationReport
from adapters.settings import UploadSettings
from control_plane import metrics
from control_plane.registry.review import validation_jobs
from control_plane.registry.review.validation_jobs import ValidationJob
from control_plane.registry.revisions import stored_digests
from control_plane.settings import WorkerSettings
from core.db import unit_of_work
from core.errors import Unavailable


class StoredObjectIncomplete(Unavailable):
    """The object was removed while it was stored. It is incomplete and must be stored again."""


class ValidationWorker:
    """Validates one revision in each round. Fails closed: without a recorded verdict a revision never becomes ready."""

    def __init__(self, engine: Engine, store: RevisionStore, upload: UploadSettings, worker: WorkerSettings) -> None:
        self._engine = engine
        self._store = store
        self._upload = upload
        self._worker = worker

    def run_once(self) -> bool:
        """Validate the next revision. Returns whether there was one."""
        with unit_of_work(self._engine) as session:
            job = validation_jobs.claim(
                session, lease_s=self._worker.validation_lease_s, attempts_max=self._worker.validation_attempts_max
            )
        if job is None:
            return False
        log = structlog.get_logger().bind(revision_id=job.revision_id, tenant_id=job.tenant_id, attempt=job.attempt)
        started = time.monotonic()
        try:
            with self._renewing_lease(job):
                verdict = ingest(
                    self._store,
                    revision_id=job.revision_id,
                    files=job.files,
                    base=job.base,
                    known_bases=job.known_bases,
                    limits=job.limits,
                    settings=self._upload,
                )
                recorded = self._record(job, verdict)
        except Unavailable as error:
            log.warning("validation postponed", error=error.message)
            with unit_of_work(self._engine) as session:
                validation_jobs.release(
                    session,
                    job,
                    pause_s=self._worker.validation_backoff_s,
                    counted=isinstance(error, StoredObjectIncomplete),
                )
            return True
        if verdict.digest is not None and not recorded:
            stored_digests.remove_unrecorded(self._engine, self._store, verdict.digest)
        metrics.VALIDATION_SECONDS.observe(time.monotonic() - started)
        log.info("revision validated", accepted=verdict.accepted, digest=verdict.digest, recorded=recorded)
        return True

    def _record(self, job: ValidationJob, verdict: ValidationReport) -> bool:
        """Record under the digest's lock, and only a complete object: ``cleanup`` may have removed it in the
        meantime.
        """
        if verdict.manifest is None or not verdict.accepted:
            with unit_of_work(self._engine) as session:
                return validation_jobs.record(session, job, verdict, canary_required=self._worker.canary_required)
        digest = verdict.manifest.digest
        with stored_digests.digest_lock(self._engine, digest):
            if not stored_digests.is_complete(self._store, verdict.manifest):
                self._store.remove_revision(digest)  # otherwise no worker would store it again
                raise StoredObjectIncomplete(f"{digest} was removed while it was stored; it will be stored again")
            with unit_of_work(self._engine) as session:
                return validation_jobs.record(session, job, verdict, canary_required=self._worker.canary_required)

    @contextmanager
    def _renewing_lease(self, job: ValidationJob) -> Iterator[None]:
        """Renew the lease while the block runs. The lease may get lost while Postgres is away; ``record`` checks it."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self._worker.validation_lease_s / 3):
                try:
                    with unit_of_work(self._engine) as session:
                        if not validation_jobs.renew_lease(session, job, lease_s=self._worker.validation_lease_s):
                            return
                except SQLAlchemyError as error:
                    structlog.get_logger().warning("lease not renewed", error=str(error).splitlines()[0][:300])

        renewal = threading.Thread(target=renew, name="lease-renewal", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            done.set()
            renewal.join()
