"""Wiring: builds the gateway's objects, opens and closes their connections, and passes them to the routes."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from litestar import Litestar
from litestar.datastructures import State
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import telemetry
from core.contracts.replicas import OUTSIDE, ReplicaStatus
from core.ids import new_id
from core.newest_published import NewestPublished
from data_plane.gateway.admission.admission import Admission
from data_plane.gateway.admission.demand_report import DemandReport
from data_plane.gateway.admission.empty_pools import EmptyPools
from data_plane.gateway.admission.fair_queue import QueueBounds
from data_plane.gateway.admission.pool_queue import WaitLimits
from data_plane.gateway.admission.quota_slices import QuotaSlices
from data_plane.gateway.admission.quota_slices import lease_s as slice_lease_s
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.cors import Cors
from data_plane.gateway.api.prompt_counter import PromptCounters
from data_plane.gateway.api.schema_compiler import SchemaCompiler
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool
from data_plane.gateway.drain_notice import DrainNotice
from data_plane.gateway.providers.attempts import Providers
from data_plane.gateway.providers.client import ProviderClient
from data_plane.gateway.providers.replicas import provider_replicas
from data_plane.gateway.providers.spending import ProviderSpending
from data_plane.gateway.quota.quota_status import QuotaReader
from data_plane.gateway.quota.reservation import Reservations
from data_plane.gateway.request.access_watch import AccessWatch
from data_plane.gateway.request.idempotency import Idempotency
from data_plane.gateway.request.lifecycle import Lifecycle
from data_plane.gateway.request.preparation import Preparation
from data_plane.gateway.request.replay_charge import ReplayCharge
from data_plane.gateway.request.request_log import RequestLog
from data_plane.gateway.request.trace import Traces
from data_plane.gateway.request.trace_exporter import TraceExporter
from data_plane.gateway.routes import GatewayReadiness, Routes
from data_plane.gateway.routing.classifier import LinearModel
from data_plane.gateway.routing.router import Router, Stickiness
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.fair_share import BacklogBounds
from data_plane.gateway.scheduling.gateway_peers import GatewayPeers
from data_plane.gateway.scheduling.placement import PlacementCosts
from data_plane.gateway.scheduling.prefetch_hints import ListingHints
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.settlement.wiring import SettlementRuntime, redis_name
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.redis_connection import RedisConnection
from data_plane.gateway.state.snapshot import Snapshot
from data_plane.gateway.upstream.control_relay import ControlRelay
from data_plane.gateway.upstream.engine_client import EngineClient
from data_plane.gateway.upstream.relay import Relay, RetryBudget
from data_plane.gateway.upstream.unary_progress import UnaryProgress

_log = structlog.get_logger()
_GC_THRESHOLDS: Final = 10_000, 20, 50


def create_app(settings: GatewaySettings) -> Litestar:
    """The gateway as an ASGI application. It opens nothing until its lifespan starts."""
    gateway = _Gateway(settings)
    routes = gateway.routes()
    telemetry.report_readiness(gateway.readiness.not_ready)
    return Litestar(
        lifespan=[lambda _app: gateway.running()],
        state=State({"settings": settings, "handle": routes.handle}),
        openapi_config=None,
        logging_config=None,
    )


class _Gateway:
    """The objects of one process, in the order of their dependencies."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._drain_notice = DrainNotice(settings.gateway_drain_notice_s)
        self._redis = redis = Redis.from_url(
            settings.redis_url, socket_timeout=settings.redis_read_s, socket_connect_timeout=settings.redis_connect_s
        )
        self._snapshot = Snapshot(
            redis,
            settings.verifier(),
            NewestPublished(settings.journal_dir / redis_name(settings.redis_url) / "newest-snapshot"),
            block_ms=settings.snapshot_block_ms,
            batch_max=settings.snapshot_batch_max,
            on_load=_freeze_loaded_objects,
        )
        self._engines = _engine_client(settings)
        self._control_relay = ControlRelay(settings)
        self._circuits = _circuits(settings, self._engines)
        gateway_id, clock = new_id("gw"), RedisClock()
        peers = GatewayPeers(gateway_id, clock, stale_ms=settings.peer_backlog_stale_ms)
        self._replicas = _replicas(settings, redis, peers, self._circuits, self._snapshot)
        self._threads = _threads(settings)
        self._counters = _counters(settings, redis, self._threads)
        self._connection = connection = _redis_connection(settings)
        self._request_log = RequestLog(connection, clock, settings)
        self._traces = TraceExporter(settings, gateway_id)
        reservations = _reservations(settings, connection, settings.lease_s)
        self._settlement = SettlementRuntime(settings, connection, reservations, clock, gateway_id)
        settler = self._settlement.settler
        self._providers = _providers(settings, self._engines, connection, clock)
        self._access_watch = AccessWatch(settler.running, self._snapshot, every_s=settings.access_check_s)
        self._unary_progress = UnaryProgress(self._engines, poll_s=settings.unary_progress_poll_ms / 1000)
        replay_charge = ReplayCharge(reservations, settler, deadline_s=settings.reserve_deadline_ms / 1000)
        self._schemas = SchemaCompiler(redis, settings)
        self._idempotency = Idempotency(connection, replay_charge, settings)
        self._slices = _slices(settings, connection, settler)
        self._quota = QuotaReader(connection, deadline_s=settings.settlement_deadline_s)
        self._heartbeat = _heartbeat(settings, redis, self._snapshot, clock, gateway_id)
        self._preparation = Preparation(
            settings, self._snapshot, self._heartbeat, self._threads, self._counters, self._schemas, _router(settings)
        )
        self.readiness = GatewayReadiness(self._snapshot, self._heartbeat, self._replicas, self._drain_notice)
        queue = _wait_queue(settings, self._replicas)
        self._demand = DemandReport(
            redis, gateway_id, self._replicas, queue, adapters_max=settings.peer_backlog_adapters_max
        )
        self._lifecycle = Lifecycle(
            settings,
            self._preparation,
            self._admission(queue, reservations, settler, clock),
            settler,
            _relay(settings, self._engines, self._circuits, self._replicas, self._unary_progress, self._providers),
            self._idempotency,
            clock,
        )

    def _admission(
        self, queue: WaitQueue, reservations: Reservations, settler: Settler, clock: RedisClock
    ) -> Admission:
        return Admission(
            self._replicas,
            reservations,
            settler,
            queue,
            self._slices,
            EmptyPools(self._redis, clock.now_ms),
            self._demand,
            deadline_ms=self._settings.reserve_deadline_ms,
        )

    def routes(self) -> Routes:
        """The route handlers."""
        return Routes(
            self._lifecycle,
            self._preparation,
            self.readiness,
            _listing_hints(self._settings, self._redis),
            self._quota,
            self._control_relay,
            Cors(self._settings.gateway_cors_origins),
            (Traces(self._settings, self._traces), self._request_log),  # a trace's id is in the access log
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run from before the first connection is accepted until the last request is answered and settled."""
        async with self._redis, self._engines, self._providers.client:
            # Once before any connection is accepted. If it fails now, the loops keep trying and /readyz reports it.
            with contextlib.suppress(RedisError, OSError):
                await self._snapshot.load()
                await self._demand.write()  # first, so that no heartbeat is without a report
                await self._heartbeat.write()
                await self._replicas.refresh()
            followers = _start(
                **self._settlement.open(),
                snapshot=self._snapshot.run_forever(),
                heartbeat=self._heartbeat.run_forever(),
                tokenizers=self._counters.run_forever(self._snapshot),
                replicas=self._replicas.run_forever(),
                circuits=self._circuits.run_forever(),
                demand=self._demand.run_forever(),
                unary_progress=self._unary_progress.run_forever(),
                access_watch=self._access_watch.run_forever(),
                idempotency=self._idempotency.run_forever(),
                request_log=self._request_log.run_forever(),
                traces=self._traces.run_forever(),
            )
            slices = _start(slices=self._slices.run_forever())
            try:
                with self._drain_notice.on_sigterm():
                    yield
            finally:
                await _stop(slices)  # else it reserves again what is released here
                self._slices.close()
                await self._settlement.drain()
                await self._request_log.flush()
                await _stop(followers)
                await self._settlement.close()
                await self._heartbeat.stop()
                self._threads.close()
                await self._schemas.close()
                await self._connection.close()
                self._control_relay.close()
                await self._traces.flush()  # last: money does not wait for a collector


def _heartbeat(
    settings: GatewaySettings, redis: Redis, snapshot: Snapshot, clock: RedisClock, gateway_id: str
) -> Heartbeat:
    return Heartbeat(
        redis,
        snapshot,
        clock,
        gateway_id,
        period_s=settings.heartbeat_period_ms / 1000,
        lease_s=settings.heartbeat_lease_s,
    )


def _counters(settings: GatewaySettings, redis: Redis, threads: TenantThreadPool) -> PromptCounters:
    return PromptCounters(
        redis,
        threads,
        inline_max_bytes=settings.tokenize_inline_max_bytes,
        counters_max=settings.tokenizers_max,
        cache_max_bytes=settings.token_count_cache_max_bytes,
        load_s=settings.tokenizer_load_s,
    )


def _listing_hints(settings: GatewaySettings, redis: Redis) -> ListingHints:
    return ListingHints(
        redis,
        interval_s=settings.listing_hint_interval_s,
        keys_max=settings.listing_hint_keys_max,
        adapters_max=settings.listing_hint_adapters_max,
        sending_max=settings.listing_hints_sending_max,
    )


def _redis_connection(settings: GatewaySettings) -> RedisConnection:
    return RedisConnection(
        settings.redis_url,
        connect_s=settings.redis_connect_s,
        stalled_s=settings.redis_stalled_s,
        pending_max=settings.redis_pending_max,
    )


def _circuits(settings: GatewaySettings, engines: EngineClient) -> CircuitBreakers:
    async def is_healthy(replica: ReplicaStatus) -> bool:
        """An outside provider has no health check: after the pause a request tries it."""
        return replica.id.startswith(OUTSIDE) or await engines.is_healthy(replica)

    return CircuitBreakers(
        is_healthy,
        failures=settings.breaker_failures,
        open_s=settings.breaker_open_s,
        open_max_s=settings.breaker_open_max_s,
        trial_s=settings.first_byte_s,
    )


def _engine_client(settings: GatewaySettings) -> EngineClient:
    return EngineClient(
        engine_key=settings.engine_key.get_secret_value(),
        connect_s=settings.connect_s,
        keepalive_s=settings.replica_keepalive_s,
        connections_max=settings.replica_connections_max,
        connections_spare=settings.replica_connections_reserved,
        head_max_bytes=settings.replica_headers_max_bytes,
        unread_max_bytes=settings.replica_read_buffer_max_bytes,
    )


def _router(settings: GatewaySettings) -> Router:
    conversations = Stickiness(sessions_max=settings.route_conversations_max, idle_s=settings.route_idle_s)
    return Router(LinearModel.load(), conversations)


def _providers(
    settings: GatewaySettings, engines: EngineClient, connection: RedisConnection, clock: RedisClock
) -> Providers:
    retries = RetryBudget(percent=settings.retry_percent, burst=settings.retry_burst)
    spending = ProviderSpending(connection, clock, deadline_s=settings.settlement_deadline_s)
    return Providers(engines, ProviderClient(settings, retries, spending), settings)


def _relay(
    settings: GatewaySettings,
    engines: EngineClient,
    circuits: CircuitBreakers,
    replicas: Replicas,
    progress: UnaryProgress,
    providers: Providers,
) -> Relay:
    return Relay(engines, circuits, replicas, progress, providers.client.retries, settings, providers.attempt)


def _reservations(settings: GatewaySettings, connection: RedisConnection, lease_s: float) -> Reservations:
    return Reservations(
        connection,
        lease_s=lease_s,
        settled_marker_s=settings.settled_marker_s,
        request_log_max=settings.request_log_entries_max,
    )


def _replicas(
    settings: GatewaySettings, redis: Redis, peers: GatewayPeers, circuits: CircuitBreakers, snapshot: Snapshot
) -> Replicas:
    return Replicas(
        redis,
        peers,
        poll_ms=settings.replica_poll_ms,
        stale_s=settings.replica_stale_s,
        allows=circuits.allows,
        failed_by=circuits.failed_by,
        outside=lambda: provider_replicas(snapshot.tables),
    )


def _threads(settings: GatewaySettings) -> TenantThreadPool:
    return TenantThreadPool(
        settings.tokenize_threads,
        waiting_max=settings.tokenize_waiting_max,
        tenant_waiting_max=settings.tokenize_tenant_waiting_max,
    )


def _slices(settings: GatewaySettings, connection: RedisConnection, settler: Settler) -> QuotaSlices:
    long_s = slice_lease_s(heartbeat_lease_s=settings.heartbeat_lease_s, longest_s=settings.longest_ms / 1000)
    return QuotaSlices(_reservations(settings, connection, long_s), settler, settings, lease_s=long_s)


def _wait_queue(settings: GatewaySettings, replicas: Replicas) -> WaitQueue:
    costs = PlacementCosts(
        store_ms=settings.placement_store_ms,
        disk_ms=settings.placement_disk_ms,
        slot_ms=settings.placement_slot_ms,
        prompt_token_ms=settings.placement_prompt_token_ms,
        running_ms=settings.placement_running_ms,
        headroom_share=settings.placement_headroom_percent / 100,
    )
    bounds = QueueBounds(
        requests_max=settings.queue_requests_max,
        tokens_max=settings.queue_tokens_max,
        tenant_requests_max=settings.queue_tenant_requests_max,
    )
    wait_limits = WaitLimits(
        wait_s=settings.queue_wait_s,
        batch_wait_s=settings.queue_batch_wait_s,
        overdue_after_s=settings.queue_overdue_after_s,
        poll_s=settings.queue_poll_ms / 1000,
    )
    backlog_bounds = BacklogBounds(
        tenants_max=settings.peer_backlog_tenants_max, adapters_max=settings.peer_backlog_adapters_max
    )
    return WaitQueue(replicas, costs, bounds, wait_limits, backlog_bounds)


def _freeze_loaded_objects() -> None:
    """Limit the garbage collector to objects created from now on, and run it seldom. A scan of everything that a
    process has imported and published takes 50 ms, during which every stream stands still. Requests leave no reference
    cycles, so there is little to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _start(**loops: Coroutine[Any, Any, None]) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
    for task in tasks:
        task.add_done_callback(_log_death)
    return tasks


async def _stop(tasks: list["asyncio.Task[None]"]) -> None:
    """Cancel the tasks until they end: the Redis client can swallow a cancellation that coincides with a timeout."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


def _log_death(task: "asyncio.Task[None]") -> None:
    """A background task never returns. One that raised is a defect, logged at once and not at shutdown."""
    if not task.cancelled() and (error := task.exception()):
        _log.critical("a background task died", task=task.get_name(), error=repr(error))
