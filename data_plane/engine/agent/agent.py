"""The replica's agent: starts vLLM, publishes what it can take, notices when it stops generating, and drains it.

When the engine ends or hangs, the agent ends too and whoever supervises it starts both anew: a fresh pair is the one
recovery path. Probing fails closed. What the agent does for adapters beside that are tasks of their own
(``side_work``), none of which can hold up the heartbeat; nor can a probe, however slow.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog
from redis.exceptions import RedisError

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
_NOTICED_S: Final = 1.0  # gateways read heartbeats four times a second; until then they still send requests


class Agent:
    """One engine process and what is published of it."""

    def __init__(
        self,
        settings: ReplicaSettings,
        engine: LocalEngine,
        publisher: StatusPublisher,
        side_work: AdapterTasks,
        condition: EngineState,
        probes: ProbeTokens,
        *,
        start: Callable[[], EngineProcess],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._publisher = publisher
        self._probes = probes
        self._side_work = side_work
        self._condition = condition
        self._start = start
        self._progress = EngineProgress()
        self._probe_failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._drain_wanted = False
        self._process: EngineProcess | None = None

    async def run(self) -> int:
        """Run until told to stop (0) or until the engine fails (1)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._condition.stopping.set)
        await self._publisher.withdraw()  # what a killed agent left would send requests to an engine not yet up
        self._process = self._start()
        try:
            if not await self._wait_until_ready():
                return 0 if self._condition.stopping.is_set() else 1
            self._side_work.start()
            healthy = await self._watch()
            await self._drain(wait=healthy)
            return 0 if healthy else 1
        finally:
            await self._side_work.close()
            await self._end_probe()
            await self._process.stop()

    async def _wait_until_ready(self) -> bool:
        """Ready is an engine that has generated a token and refuses what is revoked."""
        deadline = time.monotonic() + self._settings.engine_start_s
        while time.monotonic() < deadline and not self._condition.stopping.is_set() and self._alive():
            try:
                await self._engine.metrics()
            except (aiohttp.ClientError, TimeoutError, KeyError):
                await self._pause(0.25)
                continue
            if await self._probe() and await self._honour_revocations():
                self._condition.state = "ready"
                log.info("replica ready", replica_id=self._settings.replica_id)
                return True
            await self._pause(0.25)
        log.error("engine did not become ready", alive=self._alive(), waited_s=self._settings.engine_start_s)
        return False

    async def _honour_revocations(self) -> bool:
        """Wait, for as long as the engine lives, until it is known what is revoked and the engine refuses it. Without
        Redis no gateway could admit a request, so nothing is lost by waiting.
        """
        said = ""
        while not self._condition.stopping.is_set() and self._alive():
            try:
                await self._side_work.honour_revocations()
            except (SnapshotMissing, ControlRequestFailed, RedisError, OSError, aiohttp.ClientError) as error:
                if repr(error) != said:
                    said = repr(error)
                    log.warning("what is revoked is not known yet; not ready until it is", error=said)
                await self._pause(0.5)
            else:
                return True
        return False

    async def _watch(self) -> bool:
        """Publish and probe until asked to stop (True) or until the engine is lost (False)."""
        while not self._condition.stopping.is_set():
            if not self._alive():
                log.error("engine process ended", exit_status=self._process.exit_status if self._process else None)
                return False
            answered = await self._publish() is not None
            if self._probe_failures >= self._settings.probe_failures_max:
                log.error("engine generates nothing; replacing it", failures=self._probe_failures)
                return False
            if self._is_probe_due(answered=answered):
                self._probing = asyncio.create_task(self._judge())
            await self._pause(self._settings.heartbeat_s)
        return True

    def _is_probe_due(self, *, answered: bool) -> bool:
        """Whether none is under way, and the engine gives a reason: silence, or that it has failed one."""
        if self._probing is not None:
            if not self._probing.done():
                return False
            self._probing.result()  # raises what nobody foresaw
        quiet_s = time.monotonic() - self._progress.last_at_s
        return not answered or self._condition.state == "unhealthy" or quiet_s >= self._settings.probe_every_s

    async def _judge(self) -> None:
        """Probe an engine that serves, and say what it is; the next heartbeat publishes it."""
        if not await self._probe():
            self._condition.state = "unhealthy"
        elif self._condition.state == "unhealthy":
            self._serve()

    def _serve(self) -> None:
        """It is well: it takes requests, unless it is to drain."""
        self._condition.state = "draining" if self._drain_wanted or self._condition.stopping.is_set() else "ready"

    async def _probe(self) -> bool:
        """Have it generate a token. One that does not come in time is no failure where others' tokens came."""
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

    async def _end_probe(self) -> None:
        """Give up the probe that is under way, if any."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _publish(self) -> EngineMetrics | None:
        """Scrape the engine and publish what it says; None when the engine did not answer the scrape."""
        try:
            engine = await self._engine.metrics()
        except (aiohttp.ClientError, TimeoutError, KeyError) as error:
            log.warning("scrape failed", error=repr(error))
            return None
        self._condition.waiting_requests = engine.waiting
        self._progress.record_scrape(engine)
        drain_wanted = await self._publisher.publish(
            self._condition.state, engine, self._probes, self._side_work.residency
        )
        if drain_wanted is not None:
            self._drain_wanted = drain_wanted
            if self._condition.state in ("ready", "draining"):
                self._serve()
        return engine

    async def _drain(self, *, wait: bool) -> None:
        """Tell gateways to send nothing more, then wait for what runs, and publish the last counters."""
        self._condition.state = "draining" if wait else "unhealthy"
        started = time.monotonic()
        while self._alive():
            engine = await self._publish()
            waited_s = time.monotonic() - started
            idle = engine is not None and engine.running + engine.waiting == 0 and self._is_idle
            if engine is None or not wait or (idle and waited_s >= _NOTICED_S) or waited_s >= self._settings.drain_s:
                break
            await asyncio.sleep(0.2)
        await self._side_work.close()
        await self._end_probe()
        await self._publish()  # a canary that was cut short has its tokens counted by now
        await self._publisher.withdraw()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing of the agent's own runs on the engine."""
        return self._side_work.is_idle and (self._probing is None or self._probing.done())

    def _alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until someone asks to stop."""
        try:
            await asyncio.wait_for(self._condition.stopping.wait(), seconds)
        except TimeoutError:
            return
