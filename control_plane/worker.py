"""The control plane's worker: loops that run side by side in threads, and stop together on SIGTERM.

Each loop repeats one step; what a step does is its room's business. A step that raises is logged and repeated after a
growing pause, so that Postgres, Redis or S3 may go and come back.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import structlog
from sqlalchemy import Engine

from adapters.object_store.revision_store import AdapterStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.sandbox.work_folder import remove_abandoned
from control_plane import metrics
from control_plane.dependencies import open_redis
from control_plane.idempotency import service as idempotency
from control_plane.projections import projections
from control_plane.publishing.outbox_relay import Relay
from control_plane.registry.cleanup.orphan_sweep import OrphanSweep
from control_plane.registry.cleanup.stored_revisions import StoredRemoval
from control_plane.registry.cleanup.uploads import UploadCleanup
from control_plane.registry.review.canary_worker import CanaryExchange
from control_plane.registry.review.validation_worker import Validator
from control_plane.registry.revocations.receipts import ReceiptCollector
from control_plane.settings import ControlSettings
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import db


@dataclass(frozen=True, kw_only=True)
class Loop:
    """``step`` is called again at once while it returns True, else after ``idle_s``."""

    name: str
    step: Callable[[], bool]
    idle_s: float


def loops(settings: ControlSettings, engine: Engine) -> list[Loop]:
    """Everything one worker repeats."""
    worker = settings.worker
    bucket = Bucket(settings.s3, settings.store)
    relay = Relay(
        engine, open_redis(settings.redis.redis_url), projections(settings.publishing), batch_max=worker.relay_batch_max
    )
    validator = Validator(engine, AdapterStore(bucket), settings.upload, worker)
    cleanup = UploadCleanup(
        engine,
        UploadStore(bucket),
        upload_expires_s=worker.upload_expires_s,
        url_expires_s=settings.upload.upload_url_expires_s,
        batch_max=worker.cleanup_batch_max,
    )

    def forget_responses() -> bool:
        with db.unit_of_work(engine) as session:
            idempotency.forget_expired(session, worker.idempotency_expires_s)
        return False

    redis = open_redis(settings.redis.redis_url)
    canaries = CanaryExchange(engine, redis, worker)
    receipts = ReceiptCollector(engine, redis, worker)
    removal = StoredRemoval(engine, AdapterStore(bucket), worker)
    orphans = OrphanSweep(engine, AdapterStore(bucket), worker)
    ceilings = SpendCeilings(engine, redis, worker)
    return [
        Loop(name="relay", step=relay.step, idle_s=worker.relay_poll_ms / 1000),
        *(
            Loop(name=f"validation-{slot}", step=validator.step, idle_s=worker.validation_poll_ms / 1000)
            for slot in range(worker.validation_slots)
        ),
        Loop(name="canary", step=canaries.step, idle_s=worker.canary_poll_ms / 1000),
        Loop(name="revocations", step=receipts.step, idle_s=worker.revocation_poll_ms / 1000),
        Loop(name="revocations-kept", step=receipts.revisit, idle_s=worker.cleanup_poll_s),
        Loop(name="spend-ceilings", step=ceilings.step, idle_s=worker.spend_ceiling_poll_s),
        Loop(name="removal", step=removal.step, idle_s=worker.cleanup_poll_s),
        Loop(name="orphans", step=orphans.step, idle_s=worker.orphans_poll_s),
        Loop(name="cleanup", step=cleanup.step, idle_s=worker.cleanup_poll_s),
        Loop(name="idempotency", step=forget_responses, idle_s=worker.cleanup_poll_s),
    ]


def run(settings: ControlSettings) -> int:
    """Run every loop until SIGTERM or SIGINT; 0 when all of them finished their step in time, 1 otherwise."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    engine = db.connect(settings.postgres)
    threads = [
        threading.Thread(
            target=repeat, args=(loop, stop, settings.worker.loop_backoff_max_s), name=loop.name, daemon=True
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


def repeat(loop: Loop, stop: threading.Event, backoff_max_s: float) -> None:
    """Repeat a loop's step until told to stop."""
    failures = 0
    while not stop.is_set():
        try:
            more = loop.step()
            failures = 0
            metrics.LOOP_ALIVE.labels(loop.name).set_to_current_time()
            pause_s = 0.0 if more else loop.idle_s
        except Exception as error:  # noqa: BLE001 - a loop outlives whatever one step meets
            failures += 1
            metrics.LOOP_FAILURES.labels(loop.name).inc()
            pause_s = min(backoff_max_s, 0.1 * 2 ** min(failures, 10))
            structlog.get_logger().warning("loop step failed", loop=loop.name, failures=failures, exc_info=error)
        stop.wait(pause_s)
