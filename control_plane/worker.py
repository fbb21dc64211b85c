"""The control plane's worker: it runs loops in parallel threads and stops them together on SIGTERM. Each room
implements its own round.

A round that raises is logged and repeated after a growing pause, so the worker survives an outage of Postgres, Redis or
S3.
"""

import structlog
from redis import Redis
from sqlalchemy import Engine

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.sandbox.work_folder import remove_abandoned
from billing.limits import ceilings
from control_plane.api_keys import service as api_keys
from control_plane.dependencies import handlers_of_changes, open_redis
from control_plane.idempotency import service as idempotency
from control_plane.loop_process import run_until_signal
from control_plane.members import device_login, sessions, sign_in
from control_plane.payments.service import StandingChanges
from control_plane.projections import projections
from control_plane.publishing.outbox import publish_bulk
from control_plane.publishing.outbox_relay import OutboxRelay
from control_plane.registry.adapters import pins
from control_plane.registry.cleanup.orphan_sweep import OrphanSweep
from control_plane.registry.cleanup.stored_revisions import StoredRevisionCleanup
from control_plane.registry.cleanup.uploads import UploadCleanup
from control_plane.registry.gpu_times import publish_gpu_times
from control_plane.registry.review.canary_worker import CanaryWorker
from control_plane.registry.review.validation_worker import ValidationWorker
from control_plane.registry.revocations.receipts import ReceiptCollector
from control_plane.request_log.upkeep import RequestLogUpkeep
from control_plane.request_log.writer import RequestLogWriter
from control_plane.settings import ConsoleSettings, ControlSettings, WorkerSettings
from control_plane.tenants.scheduled_versions import LOOK_EVERY_S, ScheduledVersions
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import db
from core.loops import Loop

_LOOK_S = 0.1  # between two looks whether Postgres has changed; if so, loops look for work
_VALIDATION_S = 0.25
_CEILINGS_S = 0.25
_SCHEDULED_S = 0.5
_ORPHANS_S = 3600.0
_IDLE_S = 5.0
_GPU_TIMES_S = 600.0
_LEASES_S = 2.0  # a validation whose lease has ended
_REDIS_CHECK_S = 0.5
_REQUEST_LOG_S = 1.0  # a file for each round that finds anything


def loops(settings: ControlSettings, engine: Engine) -> list[Loop]:
    """All loops of one worker."""
    worker = settings.worker
    bucket = Bucket(settings.s3, settings.store)
    relay = OutboxRelay(
        engine, open_redis(settings.redis.redis_url), projections(settings.publishing), settings.signing.signer()
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

    redis = open_redis(settings.redis.redis_url)
    canaries = CanaryWorker(engine, redis, worker)
    receipts = ReceiptCollector(engine, redis, worker)
    removal = StoredRevisionCleanup(engine, RevisionStore(bucket), worker)
    orphans = OrphanSweep(engine, RevisionStore(bucket), worker)
    log_writer = RequestLogWriter(redis, bucket, entries_max=settings.request_log.request_log_batch_max)
    log_upkeep = RequestLogUpkeep(engine, redis, bucket, settings.request_log)
    payment_standings = StandingChanges(engine, handlers_of_changes())
    return [
        Loop("relay", relay.run_once, _LOOK_S, _IDLE_S),
        Loop("relay-redis", relay.check_redis, _REDIS_CHECK_S),
        *(
            Loop(f"validation-{slot}", validator.run_once, _VALIDATION_S, _LEASES_S)
            for slot in range(worker.validation_slots)
        ),
        Loop("canary", canaries.run_once, worker.canary_poll_ms / 1000, _IDLE_S),
        Loop("revocations", receipts.run_once, worker.revocation_poll_ms / 1000, _IDLE_S),
        Loop("revocations-kept", receipts.recheck_unloaded, worker.cleanup_poll_s),
        Loop("payment-standings", payment_standings.run_once, _LOOK_S, _IDLE_S),
        *_published_terms(engine, redis, worker),
        Loop("removal", removal.run_once, worker.cleanup_poll_s),
        Loop("orphans", orphans.run_once, _ORPHANS_S),
        Loop("gpu-times", lambda: publish_gpu_times(engine), _GPU_TIMES_S),
        Loop("cleanup", cleanup.run_once, worker.cleanup_poll_s),
        Loop("pin-history", lambda: _correct_pin_history(engine), worker.cleanup_poll_s),
        Loop("request-log", log_writer.run_once, _REQUEST_LOG_S),
        Loop("request-log-upkeep", log_upkeep.run_once, worker.cleanup_poll_s),
        Loop("idempotency", remove_expired_responses, worker.cleanup_poll_s),
        Loop("api-keys", lambda: _end_expired_keys(engine), worker.cleanup_poll_s),
        Loop("console-sessions", lambda: _remove_ended_sessions(engine, settings.console), worker.cleanup_poll_s),
    ]


def _published_terms(engine: Engine, redis: Redis, worker: WorkerSettings) -> list[Loop]:
    """Loops that publish tenants again when time or billing changes what they may spend, or their prices."""
    month_turn = SpendCeilings(engine, redis, worker)
    scheduled = ScheduledVersions(engine)
    return [
        Loop("spend-ceilings", month_turn.run_once, worker.spend_ceiling_poll_s),
        Loop("changed-ceilings", lambda: publish_changed_ceilings(engine), _CEILINGS_S, _IDLE_S),
        Loop("scheduled-versions", scheduled.run_once, _SCHEDULED_S, LOOK_EVERY_S),
    ]


def publish_changed_ceilings(engine: Engine) -> bool:
    """Publish the tenants whose spend ceilings billing has changed: after usage, the end of a lot, or a payment. A
    crash before the commit leaves them waiting. Always returns False.
    """
    with db.unit_of_work(engine) as session:
        publish_bulk(session, "tenants", ceilings.take_changed(session))
    return False


def _end_expired_keys(engine: Engine) -> bool:
    """Revoke keys that have expired. Always returns False."""
    with db.unit_of_work(engine) as session:
        api_keys.end_expired(session)
    return False


def _remove_ended_sessions(engine: Engine, rules: ConsoleSettings) -> bool:
    """Delete sessions, counts of failed sign-ins and codes of commands that are over. Always returns False."""
    with db.unit_of_work(engine) as session:
        sessions.remove_ended(session, rules)
        sign_in.remove_old_tries(session, rules)
        device_login.remove_expired(session)
    return False


def _correct_pin_history(engine: Engine) -> bool:
    """Compare what tenants pay for with the pins in force, in one state of the database. Always returns False."""
    with db.unit_of_work(engine) as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        if wrong := pins.correct_history(session):
            structlog.get_logger().warning("history of pins corrected", adapters=wrong)
    return False


def run(settings: ControlSettings) -> int:
    """Run every loop until a signal. Returns the exit status."""
    engine = db.connect(settings.postgres)
    remove_abandoned(settings.upload.upload_work_dir)
    return run_until_signal(loops(settings, engine), engine, look_s=_LOOK_S, stop_s=settings.worker.worker_stop_s)
