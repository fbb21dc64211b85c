"""The control plane's worker: it runs loops in parallel threads and stops them together on SIGTERM. Each room
implements its own round.

A round that raises is logged and repeated after a growing pause, so the worker survives an outage of Postgres, Redis or
S3.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import structlog
from redis import Redis
from sqlalchemy import Engine

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.sandbox.work_folder import remove_abandoned
from control_plane import metrics
from control_plane.dependencies import handlers_of_changes, open_redis
from control_plane.idempotency import service as idempotency
from control_plane.limits.changed_ceilings import ChangedCeilings
from control_plane.payments.service import StandingChanges
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.registry.adapters import pins
from control_plane.registry.cleanup.orphan_sweep import OrphanSweep
from control_plane.registry.cleanup.stored_revisions import StoredRevisionCleanup
from control_plane.registry.cleanup.stored_sizes import StoredSizes
from control_plane.registry.cleanup.uploads import UploadCleanup
from control_plane.registry.review.canary_worker import CanaryWorker
from control_plane.registry.review.validation_worker import ValidationWorker
from control_plane.registry.revocations.receipts import ReceiptCollector
from control_plane.settings import ControlSettings, WorkerSettings
from control_plane.tenants.scheduled_versions import ScheduledVersions
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import db
from core.struct_types import complete_struct_types


@dataclass(frozen=True, kw_only=True)
class Loop:
    """``run_once`` is called again at once while it returns True, otherwise after ``idle_s``."""

    name: str
    run_once: Callable[[], bool]
    idle_s: float


def loops(settings: ControlSettings, engine: Engine) -> list[Loop]:
    """All loops of one worker."""
    worker = settings.worker
    bucket = Bucket(settings.s3, settings.store)
    relay = OutboxRelay(
        engine,
        open_redis(settings.redis.redis_url),
        projections(settings.publishing),
        settings.signing.signer(),
        batch_max=worker.relay_batch_max,
    )
    validator = ValidationWorker(engine, RevisionStore(bucket), settings.upload, worker)
    cleanup = UploadCleanup(
        engine,
        UploadStore(bucket),
        upload_expires_s=worker.upload_expires_s,
        url_expires_s=settings.upload.upload_url_expires_s,
        batch_max=worker.cleanup_batch_max,
    )

    def remove_expired_responses() -> bool:
        with db.unit_of_work(engine) as session:
            idempotency.remove_expired(session, worker.control_idempotency_expires_s)
        return False

    sizes = StoredSizes(engine, RevisionStore(bucket), worker)
    redis = open_redis(settings.redis.redis_url)
    canaries = CanaryWorker(engine, redis, worker)
    receipts = ReceiptCollector(engine, redis, worker)
    removal = StoredRevisionCleanup(engine, RevisionStore(bucket), worker)
    orphans = OrphanSweep(engine, RevisionStore(bucket), worker)
    payment_standings = StandingChanges(engine, handlers_of_changes())
    return [
        Loop(name="relay", run_once=relay.run_once, idle_s=worker.relay_poll_ms / 1000),
        *(
            Loop(name=f"validation-{slot}", run_once=validator.run_once, idle_s=worker.validation_poll_ms / 1000)
            for slot in range(worker.validation_slots)
        ),
        Loop(name="canary", run_once=canaries.run_once, idle_s=worker.canary_poll_ms / 1000),
        Loop(name="revocations", run_once=receipts.run_once, idle_s=worker.revocation_poll_ms / 1000),
        Loop(name="revocations-kept", run_once=receipts.recheck_unloaded, idle_s=worker.cleanup_poll_s),
        Loop(name="payment-standings", run_once=payment_standings.run_once, idle_s=worker.relay_poll_ms / 1000),
        *_published_terms(engine, redis, worker),
        Loop(name="removal", run_once=removal.run_once, idle_s=worker.cleanup_poll_s),
        Loop(name="orphans", run_once=orphans.run_once, idle_s=worker.orphans_poll_s),
        Loop(name="cleanup", run_once=cleanup.run_once, idle_s=worker.cleanup_poll_s),
        Loop(name="pin-history", run_once=lambda: _correct_pin_history(engine), idle_s=worker.cleanup_poll_s),
        Loop(name="stored-sizes", run_once=sizes.run_once, idle_s=worker.cleanup_poll_s),
        Loop(name="idempotency", run_once=remove_expired_responses, idle_s=worker.cleanup_poll_s),
    ]


def _published_terms(engine: Engine, redis: Redis, worker: WorkerSettings) -> list[Loop]:
    """Loops that publish tenants again when time or billing changes what they may spend, or their prices."""
    ceilings = SpendCeilings(engine, redis, worker)
    changed = ChangedCeilings(engine)
    scheduled = ScheduledVersions(engine)
    return [
        Loop(name="spend-ceilings", run_once=ceilings.run_once, idle_s=worker.spend_ceiling_poll_s),
        Loop(name="changed-ceilings", run_once=changed.run_once, idle_s=worker.ceiling_publish_poll_ms / 1000),
        Loop(name="scheduled-versions", run_once=scheduled.run_once, idle_s=worker.scheduled_version_poll_ms / 1000),
    ]


def _correct_pin_history(engine: Engine) -> bool:
    """Compare what tenants pay for with the pins in force, in one state of the database. Always returns False."""
    with db.unit_of_work(engine) as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        if wrong := pins.correct_history(session):
            structlog.get_logger().warning("history of pins corrected", adapters=wrong)
    return False


def run(settings: ControlSettings) -> int:
    """Run every loop until SIGTERM or SIGINT. Returns 0 when all of them finished their round in time, 1 otherwise."""
    complete_struct_types()
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    engine = db.connect(settings.postgres)
    threads = [
        threading.Thread(
            target=run_forever, args=(loop, stop, settings.worker.loop_backoff_max_s), name=loop.name, daemon=True
        )
        for loop in loops(settings, engine)
    ]
    for thread in threads:
        thread.start()
    structlog.get_logger().info("worker started", loops=[thread.name for thread in threads])
    remove_abandoned(settings.upload.upload_work_dir)
    stop.wait()
    deadline = time.monotonic() + settings.worker.worker_stop_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [thread.name for thread in threads if thread.is_alive()]
    structlog.get_logger().info("worker stopped", unfinished=late)
    if not late:
        engine.dispose()
    return 1 if late else 0


def run_forever(loop: Loop, stop: threading.Event, backoff_max_s: float) -> None:
    """Repeat a loop's round until ``stop`` is set."""
    failures = 0
    while not stop.is_set():
        try:
            more = loop.run_once()
            failures = 0
            metrics.LOOP_ALIVE.labels(loop.name).set_to_current_time()
            pause_s = 0.0 if more else loop.idle_s
        except Exception as error:  # noqa: BLE001 - a loop survives every error of one round
            failures += 1
            metrics.LOOP_FAILURES.labels(loop.name).inc()
            pause_s = min(backoff_max_s, 0.1 * 2 ** min(failures, 10))
            structlog.get_logger().warning("loop round failed", loop=loop.name, failures=failures, exc_info=error)
        stop.wait(pause_s)
