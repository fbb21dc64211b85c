"""The replica's agent: starts vLLM, publishes its status, detects when it stops generating, and drains it.

When the engine ends or hangs, the agent ends too, and its supervisor starts both again: a fresh pair is the only
recovery path. Probing fails closed. The agent's work for adapters runs in background tasks (``adapter_tasks``). Neither
they nor a slow probe can delay the heartbeat.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import structlog
from redis.exceptions import RedisError

from core.contracts.replicas import ReplicaState
from core.errors import AppError
from core.snapshot_signing import ForgedSnapshot
from data_plane.engine.agent import metrics
from data_plane.engine.agent.adapter_tasks import AdapterTasks
from data_plane.engine.agent.control_client import ControlRequestFailed
from data_plane.engine.agent.engine_client import EngineMetrics, LocalEngine, ProbeTokens
from data_plane.engine.agent.engine_files import EngineFiles
from data_plane.engine.agent.engine_process import EngineProcess
from data_plane.engine.agent.engine_state import EngineProgress, EngineState
from data_plane.engine.agent.snapshot_reader import SnapshotMissing
from data_plane.engine.agent.status_publisher import ReplicaIdTaken, StatusPublisher
from data_plane.engine.settings import ReplicaSettings

log: Final = structlog.get_logger()
T = TypeVar("T")
_NOT_KNOWN: Final = (SnapshotMissing, ForgedSnapshot, RedisError)  # why the revocations may not be known
_DRAIN_NOTICE_S: Final = 2.0  # gateways send requests until they have read the heartbeat; of many, they read parts


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
        files: EngineFiles,
        *,
        start: Callable[[Path], EngineProcess],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._publisher = publisher
        self._probes = probes
        self._adapter_tasks = adapter_tasks
        self._engine_state = engine_state
        self._files = files
        self._start = start
        self._progress = EngineProgress()
        self._probe_failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._drain_requested = False
        self._signaled = False
        self._drain_ended = asyncio.Event()
        self._process: EngineProcess | None = None
        self._failure = ""

    @property
    def exit_status(self) -> int:
        """1 once the engine has failed or another agent has the replica's id, else 0."""
        return 1 if self._failure else 0

    async def run_forever(self) -> int:
        """After ``claim_id``: run until a stop signal, or until there is a failure. A second signal ends the drain.
        Returns the exit status.
        """
        try:
            if serves := await self._start_up():
                self._adapter_tasks.start()
                await self._watch()
            await self._drain(waits=serves and self._engine_state.stopping.is_set())
            return self.exit_status
        finally:
            await self._adapter_tasks.close()
            await self._cancel_probe()
            if self._process is not None:
                await self._process.stop()
            self._files.close()

    def _on_signal(self) -> None:
        if self._signaled:
            self._drain_ended.set()
        self._signaled = True
        self._engine_state.stopping.set()

    def _fail(self, reason: str) -> None:
        """The agent ends, for the first reason that it gets."""
        if not self._failure:
            self._failure = reason
            log.error("replica failed", reason=reason)

    async def claim_id(self) -> bool:
        """Obey signals from now on, and publish that this replica starts. An agent that was killed keeps its id until
        its status expires, and one that lives keeps it: then this agent ends, before it has an engine. False on that or
        on a stop.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        deadline = time.monotonic() + self._settings.status_ttl_s + 2 * self._settings.heartbeat_s
        while not self._engine_state.stopping.is_set():
            try:
                await self._publisher.publish("starting")
            except ReplicaIdTaken as taken:
                if time.monotonic() > deadline:
                    self._fail(f"replica_id_taken: {taken}; give each replica an id of its own, or none")
                    return False
                await self._pause(self._settings.heartbeat_s)
            else:
                return True
        return False

    async def _start_up(self) -> bool:
        """Wait until the engine may serve, and publish meanwhile that it starts. False on a stop or a failure."""
        ended = asyncio.Event()
        publishing = asyncio.create_task(self._publish_start(ended))
        try:
            if not (await self._start_engine() and await self._wait_until_ready() and await self._passes_canary()):
                return False
            await self._look_at_store()
        finally:
            ended.set()
            await publishing  # it ends by itself, so that its last status comes before those that follow
        self._mark_serving()
        return True

    async def _publish_start(self, ended: asyncio.Event) -> None:
        """Repeat what ``claim_id`` has published."""
        while not await self._pause(self._settings.heartbeat_s, until=ended):
            await self._publish_state("starting", None)

    async def _start_engine(self) -> bool:
        """Start the engine when its files are there. False on a stop or a failure."""
        try:
            model = await self._unless_stopped(self._files.prepare())
            if model is None:
                return False
            self._process = self._start(model)  # in this thread: the kernel ends the engine with it
        except (AppError, OSError) as error:
            self._fail(str(error))
            return False
        return True

    async def _wait_until_ready(self) -> bool:
        """Wait until the engine has generated a token and refuses revoked adapters. False on a stop or a failure."""
        deadline = time.monotonic() + self._settings.engine_start_s
        last_error = ""
        while not self._engine_state.stopping.is_set():
            if not self._alive():
                self._fail(f"the engine ended with status {self._engine_exit_status} at its start; its log says why")
                return False
            if time.monotonic() >= deadline:
                waited_s = self._settings.engine_start_s
                self._fail(f"the engine has generated no token {waited_s:g} s after its start. {last_error}".rstrip())
                return False
            try:
                await self._engine.metrics()
            except (aiohttp.ClientError, TimeoutError, KeyError) as error:
                last_error = repr(error)
            else:
                if await self._probe() and await self._enforce_revocations():
                    return True
            await self._pause(0.25)
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

    async def _passes_canary(self) -> bool:
        """Run adapters that other replicas serve. False on a stop or a failure."""
        failure = await self._unless_stopped(self._adapter_tasks.start_canary.failure())
        if failure:
            self._fail(failure)
        return failure == ""

    async def _look_at_store(self) -> None:
        """The first of the probes that a background task repeats. Without it a healthy replica would be ready later."""
        try:
            await self._adapter_tasks.store.run_once()
        except (ControlRequestFailed, OSError, aiohttp.ClientError) as error:
            log.warning("object store not probed", error=repr(error))

    async def _watch(self) -> None:
        """Publish and probe until a stop signal or until the engine is lost."""
        while not self._engine_state.stopping.is_set():
            if not self._alive():
                self._fail(f"the engine ended with status {self._engine_exit_status}; its log says why")
                return
            if not self._probe_if_due(await self._publish()):
                return
            await self._pause(self._settings.heartbeat_s)

    def _probe_if_due(self, engine: EngineMetrics | None) -> bool:
        """Start a probe when there is a reason for one. False, and a failure, when too many have failed."""
        if self._probe_failures >= self._settings.probe_failures_max:
            self._fail(f"the engine hangs: {self._probe_failures} probes in a row have failed")
            return False
        if self._is_probe_due(answered=engine is not None):
            self._probing = asyncio.create_task(self._probe_and_record())
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
        """Set the state of a healthy engine: draining when an admin wants that, else ready once the object store was
        readable.
        """
        before = self._engine_state.state
        if self._drain_requested or self._adapter_tasks.cordons.reason or self._engine_state.stopping.is_set():
            self._engine_state.state = "draining"
        else:
            self._engine_state.state = "ready" if self._adapter_tasks.store.was_readable else "starting"
        if self._engine_state.state == "ready" != before:
            log.info("replica ready", replica_id=self._settings.replica_id)

    async def _probe(self) -> bool:
        """Generate one token. A timeout is no failure when other requests' tokens were counted meanwhile."""
        began = time.monotonic()
        try:
            prompt_tokens, generated_tokens = await self._engine.probe()
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
        drain_requested = await self._publish_state(self._engine_state.state, engine)
        if drain_requested is not None:
            self._drain_requested = drain_requested
            if self._engine_state.state != "unhealthy":
                self._mark_serving()
        return engine

    async def _publish_state(self, state: ReplicaState, engine: EngineMetrics | None) -> bool | None:
        """Publish the status. Once another agent has the id, this one is fenced: it finishes what it serves and ends,
        and it publishes nothing, also when the other one has gone.
        """
        if self._engine_state.fenced:
            return None
        residency = None if engine is None else self._adapter_tasks.residency
        reason = self._adapter_tasks.cordons.reason or (
            self._files.doing if engine is None else self._adapter_tasks.store.reason
        )
        try:
            return await self._publisher.publish(state, engine, residency, reason=reason)
        except ReplicaIdTaken as taken:
            self._fail(f"replica_id_taken: {taken}")
            metrics.READY.set(0)
            self._engine_state.fenced = True
            self._engine_state.stopping.set()
            return None

    async def _drain(self, *, waits: bool) -> None:
        """Publish the draining state, wait for running requests while the engine works, and send what it counted. A
        failed replica waits for none, and leaves its reason for a minute.
        """
        self._engine_state.state = "draining" if self._engine_state.stopping.is_set() else "unhealthy"
        started = time.monotonic()
        while self._alive():
            engine = await self._publish()
            waited_s = time.monotonic() - started
            idle = engine is not None and engine.running + engine.waiting == 0 and self._is_idle
            if (
                not waits
                or (idle and waited_s >= _DRAIN_NOTICE_S)
                or waited_s >= self._settings.drain_s
                or self._drain_ended.is_set()
                or (not idle and not self._probe_if_due(engine))
            ):
                break
            await self._pause(self._settings.heartbeat_s, until=self._drain_ended)
        await self._adapter_tasks.close()
        await self._cancel_probe()
        await self._report_usage()
        if self._engine_state.fenced:
            return
        if self._failure:
            with contextlib.suppress(ReplicaIdTaken):
                await self._publisher.publish("failed", reason=self._failure)
        else:
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

    @property
    def _engine_exit_status(self) -> int | None:
        return None if self._process is None else self._process.exit_status

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of some work. None when a stop comes first, which ends it."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._engine_state.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return None if self._engine_state.stopping.is_set() else working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _pause(self, seconds: float, *, until: asyncio.Event | None = None) -> bool:
        """Sleep, but only until a stop or another event. Returns whether it is there."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for((until or self._engine_state.stopping).wait(), seconds)
        return False
