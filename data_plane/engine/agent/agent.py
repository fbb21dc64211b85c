"""The replica's agent: starts vLLM, publishes its status, detects when it stops generating, and drains it.

When the engine ends or hangs, the agent ends too, and its supervisor starts both again: a fresh pair is the only
recovery path. Probing fails closed. The agent's work for adapters runs in background tasks (``adapter_tasks``). Neither
they nor a slow probe can delay the heartbeat.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog
from redis.exceptions import RedisError

from core.snapshot_signing import ForgedSnapshot
from data_plane.engine.agent import metrics
from data_plane.engine.agent.adapter_tasks import AdapterTasks
from data_plane.engine.agent.control_client import ControlRequestFailed
from data_plane.engine.agent.engine_client import EngineMetrics, LocalEngine, ProbeTokens
from data_plane.engine.agent.engine_process import EngineProcess
from data_plane.engine.agent.engine_state import EngineProgress, EngineState
from data_plane.engine.agent.snapshot_reader import SnapshotMissing
from data_plane.engine.agent.status_publisher import StatusPublisher
from data_plane.engine.settings import ReplicaSettings

log: Final = structlog.get_logger()
_NOT_KNOWN: Final = (SnapshotMissing, ForgedSnapshot, RedisError)  # why the revocations may not be known
_DRAIN_NOTICE_S: Final = 1.0  # gateways read heartbeats four times a second and send requests until then


class Agent:
    """One engine process and its published status."""

    def __init__(
        self,
        settings: ReplicaSettings,
        engine: LocalEngine,
        publisher: StatusPublisher,
        adapter_tasks: AdapterTasks,
        engine_state: EngineState,
        probes: ProbeTokens,
        *,
        start: Callable[[], EngineProcess],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._publisher = publisher
        self._probes = probes
        self._adapter_tasks = adapter_tasks
        self._engine_state = engine_state
        self._start = start
        self._progress = EngineProgress()
        self._probe_failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._drain_requested = False
        self._process: EngineProcess | None = None

    async def run_forever(self) -> int:
        """Run until a stop signal (returns 0) or until the engine fails (returns 1)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._engine_state.stopping.set)
        await self._publisher.withdraw()  # a killed agent's status would send requests to an engine that is not ready
        self._process = self._start()
        try:
            if not await self._wait_until_ready():
                return 0 if self._engine_state.stopping.is_set() else 1
            await self._look_at_store()
            self._mark_serving()
            self._adapter_tasks.start()
            healthy = await self._watch()
            await self._drain(wait=healthy)
            return 0 if healthy else 1
        finally:
            await self._adapter_tasks.close()
            await self._cancel_probe()
            await self._process.stop()

    async def _wait_until_ready(self) -> bool:
        """Wait until the engine has generated a token and refuses revoked adapters. False on a stop or a timeout."""
        deadline = time.monotonic() + self._settings.engine_start_s
        while time.monotonic() < deadline and not self._engine_state.stopping.is_set() and self._alive():
            try:
                await self._engine.metrics()
            except (aiohttp.ClientError, TimeoutError, KeyError):
                await self._pause(0.25)
                continue
            if await self._probe() and await self._enforce_revocations():
                return True
            await self._pause(0.25)
        log.error("engine did not become ready", alive=self._alive(), waited_s=self._settings.engine_start_s)
        return False

    async def _enforce_revocations(self) -> bool:
        """Wait, while the engine lives, until the revocations are known and the engine enforces them. Without Redis no
        gateway can admit a request, so waiting costs nothing.
        """
        last_error = ""
        while not self._engine_state.stopping.is_set() and self._alive():
            try:
                await self._adapter_tasks.enforce_revocations()
            except (*_NOT_KNOWN, ControlRequestFailed, OSError, aiohttp.ClientError) as error:
                if repr(error) != last_error:
                    last_error = repr(error)
                    log.warning("waiting for revocations before becoming ready", error=last_error)
                await self._pause(0.5)
            else:
                return True
        return False

    async def _look_at_store(self) -> None:
        """The first of the probes that a background task repeats. Without it a healthy replica would be ready later."""
        try:
            await self._adapter_tasks.store.run_once()
        except (ControlRequestFailed, OSError, aiohttp.ClientError) as error:
            log.warning("object store not probed", error=repr(error))

    async def _watch(self) -> bool:
        """Publish and probe until a stop signal (True) or until the engine is lost (False)."""
        while not self._engine_state.stopping.is_set():
            if not self._alive():
                log.error("engine process ended", exit_status=self._process.exit_status if self._process else None)
                return False
            answered = await self._publish() is not None
            if self._probe_failures >= self._settings.probe_failures_max:
                log.error("engine hangs; replacing it", failures=self._probe_failures)
                return False
            if self._is_probe_due(answered=answered):
                self._probing = asyncio.create_task(self._probe_and_record())
            await self._pause(self._settings.heartbeat_s)
        return True

    def _is_probe_due(self, *, answered: bool) -> bool:
        """Whether no probe runs and there is a reason for one: no answer, no progress, or an earlier failed probe."""
        if self._probing is not None:
            if not self._probing.done():
                return False
            self._probing.result()  # raises unexpected errors
        quiet_s = time.monotonic() - self._progress.last_at_s
        return not answered or self._engine_state.state == "unhealthy" or quiet_s >= self._settings.probe_every_s

    async def _probe_and_record(self) -> None:
        """Probe a serving engine and update its state; the next heartbeat publishes it."""
        if not await self._probe():
            self._engine_state.state = "unhealthy"
        elif self._engine_state.state == "unhealthy":
            self._mark_serving()

    def _mark_serving(self) -> None:
        """Set the state of a healthy engine: draining when a drain was requested, else ready once the object store was
        readable.
        """
        before = self._engine_state.state
        if self._drain_requested or self._engine_state.stopping.is_set():
            self._engine_state.state = "draining"
        else:
            self._engine_state.state = "ready" if self._adapter_tasks.store.was_readable else "starting"
        if self._engine_state.state == "ready" != before:
            log.info("replica ready", replica_id=self._settings.replica_id)

    async def _probe(self) -> bool:
        """Generate one token. A timeout is no failure when other requests' tokens were counted meanwhile."""
        began = time.monotonic()
        try:
            prompt_tokens, generated_tokens = await self._engine.generate_one_token()
        except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
            if isinstance(error, TimeoutError) and self._progress.last_at_s > began:
                result = "busy"
            else:
                self._probe_failures += 1
                metrics.PROBES.labels("failed").inc()
                log.warning("probe failed", failures=self._probe_failures, error=repr(error))
                return False
        else:
            result = "ok"
            self._probes.add(prompt_tokens, generated_tokens)
            self._progress.record_probe()
        self._probe_failures = 0
        metrics.PROBES.labels(result).inc()
        return True

    async def _cancel_probe(self) -> None:
        """Cancel the running probe, if any."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _publish(self) -> EngineMetrics | None:
        """Scrape the engine and publish its status. None when the engine did not answer the scrape."""
        try:
            engine = await self._engine.metrics()
        except (aiohttp.ClientError, TimeoutError, KeyError) as error:
            log.warning("engine scrape failed", error=repr(error))
            return None
        self._engine_state.waiting_requests = engine.waiting
        self._progress.record_scrape(engine)
        drain_requested = await self._publisher.publish(
            self._engine_state.state,
            engine,
            self._adapter_tasks.residency,
            reason=self._adapter_tasks.store.reason,
        )
        if drain_requested is not None:
            self._drain_requested = drain_requested
            if self._engine_state.state != "unhealthy":
                self._mark_serving()
        return engine

    async def _drain(self, *, wait: bool) -> None:
        """Publish the draining state, wait for running requests, and send what the engine counted."""
        self._engine_state.state = "draining" if wait else "unhealthy"
        started = time.monotonic()
        while self._alive():
            engine = await self._publish()
            waited_s = time.monotonic() - started
            idle = engine is not None and engine.running + engine.waiting == 0 and self._is_idle
            if (
                engine is None
                or not wait
                or (idle and waited_s >= _DRAIN_NOTICE_S)
                or waited_s >= self._settings.drain_s
            ):
                break
            await asyncio.sleep(0.2)
        await self._adapter_tasks.close()
        await self._cancel_probe()
        await self._report_usage()
        await self._publisher.withdraw()

    async def _report_usage(self) -> None:
        """Send what the engine counted for its last requests. Reconciliation shows a difference if that fails."""
        try:
            await self._adapter_tasks.report_usage()
        except (ControlRequestFailed, RedisError, OSError, aiohttp.ClientError) as error:
            log.warning("last counts of ended requests not sent", error=repr(error))

    @property
    def _is_idle(self) -> bool:
        """Whether no request of the agent itself runs on the engine."""
        return self._adapter_tasks.is_idle and (self._probing is None or self._probing.done())

    def _alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    async def _pause(self, seconds: float) -> None:
        """Sleep, but only until a stop signal."""
        try:
            await asyncio.wait_for(self._engine_state.stopping.wait(), seconds)
        except TimeoutError:
            return
