"""The billing worker's loop: it reclaims, reads and meters the usage stream until it is stopped. Its other jobs run in
threads of their own.

It survives outages of Redis and Postgres: it waits with a bounded, doubling pause and continues with its batch.
"""

import contextlib
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import redis as redis_client
import sqlalchemy as sa
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from billing import metrics
from billing.costs.hours import CostAttribution
from billing.costs.settings import CostSettings
from billing.invoicing.closing import close_tenant
from billing.invoicing.schedule import PeriodSchedule
from billing.limits.limit_alerts import LimitAlerts
from billing.limits.spending_runner import SpendingRunner
from billing.notifications import delivery
from billing.notifications.settings import DeliverySettings, NotificationSettings, SmtpSettings
from billing.payments.dunning import DunningRounds
from billing.payments.settings import PaymentSettings
from billing.payments.top_ups import buy_if_due
from billing.quotas.adjustment_runner import AdjustmentRunner
from billing.quotas.drift import QuotaDrift
from billing.quotas.repair import QuotaRepair
from billing.reconciliation.engine_usage import store_reports
from billing.reconciliation.runs import ReconciliationSchedule, run_limits
from billing.resources.metering import ResourceMeters
from billing.resources.settings import ResourceSettings
from billing.settings import BillingSettings
from billing.stripe.settings import StripeSettings
from billing.usage.metering import OUTAGES, Meter
from billing.usage.partitions import add_partitions
from billing.usage.stream import StreamEntry, UsageStream, read_backlog
from core import db, telemetry
from core.loops import DatabaseChanges, Loop, LoopThreads
from core.settings import PostgresSettings, RedisSettings, TelemetrySettings, check_settings
from core.struct_types import complete_struct_types

WORKER_PARTS: Final = (
    BillingSettings, CostSettings, ResourceSettings, StripeSettings, PaymentSettings, NotificationSettings,
    DeliverySettings, SmtpSettings, PostgresSettings, RedisSettings, TelemetrySettings,
)  # fmt: skip
"""The settings classes that the worker reads."""

_START: Final = b"0-0"
_BACKOFF_MS_MIN: Final = 100
_JOBS_STOP_S: Final = 5
_JOBS_BACKOFF_S_MAX: Final = 5
_CHANGES_LOOK_MS: Final = 200
_IDLE_S: Final = 5
_PAUSE_MS: Final = 500
_TABLES_EVERY_S: Final = 3_600
_RECONCILIATION_DUE_S: Final = 30
_PAYMENTS_STOP_S: Final = 2  # a call that is cut off goes on when its lease ends

_log = structlog.get_logger()


class StopRequest:
    """SIGTERM and SIGINT, received only when polled: a batch is never interrupted, and a pause ends at once."""

    _SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._SIGNALS)
        self._requested = False

    def within(self, timeout_ms: int) -> bool:
        """Whether a stop is requested; waits at most this long for it."""
        if not self._requested:
            self._requested = signal.sigtimedwait(self._SIGNALS, timeout_ms / 1000) is not None
        return self._requested


class BillingWorker:
    """One consumer of the usage stream."""

    def __init__(
        self,
        redis: redis_client.Redis,
        stream: UsageStream,
        meter: Meter,
        quotas: QuotaRepair,
        settings: BillingSettings,
        stop: StopRequest,
    ) -> None:
        self._redis = redis
        self._stream = stream
        self._meter = meter
        self._quotas = quotas
        self._settings = settings
        self._stop = stop
        self._reclaim_from = _START
        self._reclaim_due = self._housekeeping_due = time.monotonic()
        self._backoff_ms = _BACKOFF_MS_MIN

    def run_forever(self) -> None:
        """Read and record batches until a stop is requested. The current batch is finished and acknowledged first."""
        grouped = False
        while not self._stop.within(0):
            try:
                if not grouped:
                    self._ensure_group()
                    grouped = True
                    _log.info("billing worker reads the usage stream", consumer=self._settings.billing_consumer)
                self.run_once()
                self._backoff_ms = _BACKOFF_MS_MIN
            except OUTAGES as error:
                grouped = False  # a Redis that came back empty has no consumer group
                self._pause(error)
        _log.info("billing worker stopped")

    def run_once(self) -> None:
        settings = self._settings
        now = time.monotonic()
        if self._reclaim_from != _START or now >= self._reclaim_due:
            self._reclaim_due = now + settings.billing_reclaim_idle_ms / 1000
            claim = self._stream.reclaim(
                cursor=self._reclaim_from,
                idle_ms=settings.billing_reclaim_idle_ms,
                count=settings.billing_batch_events_max,
            )
            self._reclaim_from = claim.cursor
            if claim.lost:
                metrics.LOST.inc(len(claim.lost))
                _log.error("entries left the stream unbilled", entries=[entry_id.decode() for entry_id in claim.lost])
            self._process(claim.entries)
        block_ms = settings.billing_block_ms if self._reclaim_from == _START else None
        self._process(self._stream.read(count=settings.billing_batch_events_max, block_ms=block_ms))
        if now >= self._housekeeping_due:
            self._housekeeping_due = now + settings.billing_housekeeping_ms / 1000
            self._stream.trim()
            backlog = read_backlog(self._redis)
            metrics.UNREAD.set(backlog.unread)
            metrics.PENDING.set(backlog.pending)
            metrics.DEAD_LETTERS_HELD.set(backlog.dead_letters)

    def _ensure_group(self) -> None:
        if self._stream.ensure_group():
            self._quotas.redis_was_empty()

    def _process(self, entries: Sequence[StreamEntry]) -> None:
        """Repeat a batch until it is recorded: reading on would only pile up what cannot be written."""
        while True:
            try:
                return self._meter.process(entries)
            except OUTAGES as error:
                if self._pause(error):
                    raise  # stopping: the entries stay pending, and the next worker reclaims them
                with contextlib.suppress(redis_client.RedisError):
                    self._ensure_group()  # a Redis that came back empty has no group, and the batch would never end

    def _pause(self, error: Exception) -> bool:
        """Wait, longer each time. Returns whether a stop was requested meanwhile."""
        dependency = "redis" if isinstance(error, redis_client.RedisError) else "postgres"
        metrics.OUTAGES.labels(dependency).inc()
        cause = str(getattr(error, "orig", error))[:500]  # without SQLAlchemy's copy of the statement
        _log.warning("dependency failed; trying again", dependency=dependency, cause=cause, pause_ms=self._backoff_ms)
        stopping = self._stop.within(self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, self._settings.billing_backoff_ms_max)
        return stopping


def connect_redis(settings: RedisSettings, billing: BillingSettings) -> redis_client.Redis:
    """A client for the worker: bytes, RESP2, no retries, and timeouts above the longest blocking read."""
    return redis_client.Redis.from_url(
        settings.redis_url,
        protocol=2,
        socket_connect_timeout=5,
        socket_timeout=5 + billing.billing_block_ms / 1000,
        retry=Retry(NoBackoff(), 0),
    )


def run() -> None:
    """Build the worker from the environment and run it until SIGTERM or SIGINT."""
    check_settings(*WORKER_PARTS)
    stop = StopRequest()  # before all threads, which inherit the mask
    telemetry.set_up("billing", TelemetrySettings())
    complete_struct_types()
    settings = BillingSettings()
    engine = db.connect(PostgresSettings())
    with connect_redis(RedisSettings(), settings) as redis:
        stream = UsageStream(redis, settings.billing_consumer)
        price_age_max = timedelta(seconds=settings.billing_price_age_s_max)
        changes = DatabaseChanges(engine, look_s=_CHANGES_LOOK_MS / 1000)
        meter = Meter(engine, stream, settings, announce=changes.announce)
        quotas = QuotaRepair(engine, redis, delay_s=settings.billing_quota_repair_s, price_age_max=price_age_max)
        drift = QuotaDrift(
            engine,
            redis,
            every_s=settings.billing_quota_drift_s,
            tenants_max=settings.billing_quota_drift_tenants_max,
            price_age_max=price_age_max,
        )
        deliveries = delivery.runner_of(PostgresSettings(), ended=changes.announce)
        jobs = [*_jobs(engine, redis, meter, quotas, drift, settings), deliveries.loop]
        threads, payments = _threads(jobs, changes), _threads(_payments(StripeSettings()), changes)
        threads.start()
        payments.start()
        changes.start()
        telemetry.report_readiness(lambda: changes.trouble)
        try:
            BillingWorker(redis, stream, meter, quotas, settings, stop).run_forever()
        finally:
            changes.stop()
            payments.stop(_PAYMENTS_STOP_S)
            threads.stop(_JOBS_STOP_S)
            deliveries.wait()
    engine.dispose()


def _threads(loops: Sequence[Loop], changes: DatabaseChanges) -> LoopThreads:
    return LoopThreads(loops, changes, backoff_max_s=_JOBS_BACKOFF_S_MAX, failures=metrics.JOBS_FAILED)


def _payments(stripe: StripeSettings) -> list[Loop]:
    """What collects payments: nothing without a key of Stripe's."""
    if stripe.stripe_api_key is None:
        _log.info("no key of stripe: nothing is collected")
        return []
    from billing.payments.background import loops_of  # late: Stripe's SDK

    return loops_of(PostgresSettings(), stripe)


def _jobs(
    engine: sa.Engine,
    redis: redis_client.Redis,
    meter: Meter,
    quotas: QuotaRepair,
    drift: QuotaDrift,
    settings: BillingSettings,
) -> list[Loop]:
    active = meter.watch()

    def compare_quotas() -> None:
        quotas.run_once()
        drift.record_active(active.take())
        if not quotas.wanted and drift.is_due:
            drift.run_once(read_backlog(redis))

    cost_settings = CostSettings()
    costs = CostAttribution(engine, redis, cost_settings)
    price_age_max = timedelta(seconds=settings.billing_price_age_s_max)
    adjustments = AdjustmentRunner(engine, redis, meter.watch(), price_age_max=price_age_max)
    resource_settings = ResourceSettings()
    resources = ResourceMeters(engine, resource_settings)
    grace = timedelta(seconds=settings.billing_grace_s)
    reconciliation = ReconciliationSchedule(
        engine,
        run_limits(settings),
        every=timedelta(seconds=settings.billing_reconcile_s),
        full_every=timedelta(seconds=settings.billing_reconcile_full_s),
    )
    collects = StripeSettings().stripe_api_key is not None
    buy_credit = partial(buy_if_due, engine) if collects else None
    dunning = DunningRounds(engine, PaymentSettings(), collects=collects)
    invoice_now = partial(close_tenant, engine, kind="threshold")
    spending = SpendingRunner(engine, meter.watch(), invoice_now=invoice_now, buy_credit=buy_credit)
    return [
        Loop("quotas", compare_quotas, 1),
        Loop("adjustments", adjustments.run_once, _PAUSE_MS / 1000, _IDLE_S),
        Loop("engine_usage", partial(store_reports, engine, redis), 1),
        Loop("spending", spending.run_once, _PAUSE_MS / 1000, _IDLE_S),
        Loop("limit_alerts", LimitAlerts(engine, redis, meter.watch()).run_once, _PAUSE_MS / 1000, _IDLE_S),
        Loop("dunning", dunning.run_once, 1, _IDLE_S),
        Loop("periods", PeriodSchedule(engine, grace=grace).run_once, settings.billing_schedule_s),
        Loop("resources", resources.run_once, resource_settings.resource_poll_s),
        Loop("costs", costs.run_once, cost_settings.cost_poll_s),
        Loop("reconciliation", reconciliation.run_once, _RECONCILIATION_DUE_S),
        Loop("tables", partial(add_partitions, engine), _TABLES_EVERY_S),
    ]
