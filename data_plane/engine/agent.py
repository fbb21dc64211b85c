"""The replica's agent: starts vLLM, publishes what it can take, notices when it stops generating, and drains it.

When the engine ends or hangs, the agent ends too and whoever supervises it starts both anew: a fresh pair is the one
recovery path. Publishing fails open (without Redis, gateways only forget this replica), probing fails closed.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from typing import Final

import aiohttp
import msgspec
import structlog
from prometheus_client import Counter, Gauge
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import keys
from core.clock import now_ms
from core.contracts import EngineCounters, ReplicaState, ReplicaStatus
from core.ids import new_id
from core.kv_pages import PAGE_TOKENS
from data_plane.engine.launch import engine_argv, engine_env
from data_plane.engine.plugin import installed_engine
from data_plane.engine.probe import Engine, EngineMetrics
from data_plane.engine.settings import ReplicaSettings

log: Final = structlog.get_logger()
PROBES: Final = Counter("tenora_replica_probes_total", "One-token generations by the agent.", ["result"])
READY: Final = Gauge("tenora_replica_ready", "1 once the engine has generated a token, 0 when it drains or fails.")
FREE_PAGES: Final = Gauge("tenora_replica_free_kv_pages", "KV pages that no sequence holds.")
_PR_SET_PDEATHSIG: Final = 1
_CPU_ENGINE_NICE: Final = 5  # it takes every core it gets, and a gateway beside it must be able to answer in between
_NOTICED_S: Final = 1.0  # gateways read heartbeats four times a second; until then they still send requests


class Agent:
    """One engine process and what is published of it."""

    def __init__(self, settings: ReplicaSettings, redis: Redis, engine: Engine) -> None:
        self._settings = settings
        self._redis = redis
        self._engine = engine
        self._boot_id = new_id("boot")
        self._state: ReplicaState = "starting"
        self._probe_prompt_tokens = 0
        self._probe_generation_tokens = 0
        self._probe_failures = 0
        self._last_progress = time.monotonic()
        self._last_generated = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until told to stop (0) or until the engine fails (1)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._withdraw()  # what an agent that was killed has left would send requests to an engine not yet up
        self._process = _start_engine(self._settings)
        try:
            if not await self._wait_until_ready():
                return 0 if self._stopping.is_set() else 1
            healthy = await self._watch()
            await self._drain(wait=healthy)
            return 0 if healthy else 1
        finally:
            await self._stop_engine()

    async def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + self._settings.engine_start_s
        while time.monotonic() < deadline and not self._stopping.is_set() and self._alive():
            try:
                await self._engine.metrics()
            except (aiohttp.ClientError, TimeoutError, KeyError):
                await self._pause(0.25)
                continue
            if await self._probe():
                self._state = "ready"
                log.info("replica ready", replica_id=self._settings.replica_id, boot_id=self._boot_id)
                return True
        log.error("engine did not become ready", alive=self._alive(), waited_s=self._settings.engine_start_s)
        return False

    async def _watch(self) -> bool:
        """Publish and probe until asked to stop (True) or until the engine is lost (False)."""
        while not self._stopping.is_set():
            if not self._alive():
                log.error("engine process ended", exit_status=self._process.returncode if self._process else None)
                return False
            metrics = await self._publish()
            quiet_s = time.monotonic() - self._last_progress
            if (metrics is None or quiet_s >= self._settings.probe_every_s) and not await self._probe():
                self._state = "unhealthy"
                if self._probe_failures >= self._settings.probe_failures_max:
                    log.error("engine generates nothing; replacing it", failures=self._probe_failures)
                    await self._publish()
                    return False
            await self._pause(self._settings.heartbeat_s)
        return True

    async def _probe(self) -> bool:
        try:
            prompt_tokens, generated_tokens = await self._engine.generate_one_token()
        except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
            self._probe_failures += 1
            PROBES.labels("failed").inc()
            log.warning("probe failed", failures=self._probe_failures, error=repr(error))
            return False
        self._probe_prompt_tokens += prompt_tokens
        self._probe_generation_tokens += generated_tokens
        self._probe_failures = 0
        self._last_progress = time.monotonic()
        if self._state == "unhealthy":
            self._state = "ready"
        PROBES.labels("ok").inc()
        return True

    async def _publish(self) -> EngineMetrics | None:
        """Scrape the engine and write its status and counters; None when the engine did not answer the scrape."""
        try:
            metrics = await self._engine.metrics()
            resident = await self._engine.resident_adapters()
        except (aiohttp.ClientError, TimeoutError, KeyError) as error:
            log.warning("scrape failed", error=repr(error))
            return None
        if metrics.generation_tokens != self._last_generated:
            self._last_generated = metrics.generation_tokens
            self._last_progress = time.monotonic()
        status = self._status(metrics, resident)
        FREE_PAGES.set(status.pages_free)
        READY.set(status.state == "ready")
        counters = EngineCounters(
            prompt_tokens=metrics.prompt_tokens,
            generation_tokens=metrics.generation_tokens,
            probe_prompt_tokens=self._probe_prompt_tokens,
            probe_generation_tokens=self._probe_generation_tokens,
        )
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.set(
                    keys.replica(status.id), msgspec.json.encode(status), px=int(self._settings.status_ttl_s * 1000)
                )
                pipe.zadd(keys.REPLICAS, {status.id: status.heartbeat_ms})
                pipe.hset(keys.ENGINE_COUNTERS, f"{status.id}/{self._boot_id}", msgspec.json.encode(counters).decode())
                pipe.exists(keys.replica_drain(status.id))
                *_, drain_wanted = await pipe.execute()
        except (RedisError, OSError) as error:
            log.warning("publishing failed", error=repr(error))
            return metrics
        if self._state in ("ready", "draining"):
            self._state = "draining" if drain_wanted or self._stopping.is_set() else "ready"
        return metrics

    def _status(self, metrics: EngineMetrics, resident: tuple[str, ...]) -> ReplicaStatus:
        pages_total = metrics.blocks * metrics.block_tokens // PAGE_TOKENS
        return ReplicaStatus(
            id=self._settings.replica_id,
            url=self._engine.url,
            base_model=self._settings.base_model,
            state=self._state,
            boot_id=self._boot_id,
            block_tokens=metrics.block_tokens,
            pages_total=pages_total,
            pages_free=round(pages_total * (1 - metrics.kv_used)),
            slots=self._settings.engine_slots,
            running_requests=metrics.running,
            waiting_requests=metrics.waiting,
            resident=resident,
            heartbeat_ms=now_ms(),
        )

    async def _drain(self, *, wait: bool) -> None:
        """Tell gateways to send nothing more, then wait for what runs, and publish the last counters."""
        self._state = "draining" if wait else "unhealthy"
        started = time.monotonic()
        while self._alive():
            metrics = await self._publish()
            waited_s = time.monotonic() - started
            idle = metrics is not None and metrics.running + metrics.waiting == 0 and waited_s >= _NOTICED_S
            if metrics is None or idle or not wait or waited_s >= self._settings.drain_s:
                break
            await asyncio.sleep(0.2)
        await self._withdraw()

    async def _withdraw(self) -> None:
        """Make gateways forget this replica now instead of when its status expires, and end a wish to drain it: a drain
        lasts until the replica is restarted.
        """
        try:
            await self._redis.delete(
                keys.replica(self._settings.replica_id), keys.replica_drain(self._settings.replica_id)
            )
            await self._redis.zrem(keys.REPLICAS, self._settings.replica_id)
        except (RedisError, OSError) as error:
            log.warning("could not withdraw the status; it expires by itself", error=repr(error))

    async def _stop_engine(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 10)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until someone asks to stop."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _start_engine(settings: ReplicaSettings) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    device, _ = installed_engine()

    def prepare() -> None:
        # An agent that is killed takes its engine with it: an engine nobody watches must not serve.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if device == "cpu":
            os.nice(_CPU_ENGINE_NICE)

    return subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
        engine_argv(settings, device),
        env=engine_env(settings, device, dict(os.environ)),
        stdin=subprocess.DEVNULL,
        preexec_fn=prepare,  # noqa: PLW1509 - system calls before exec, nothing else
    )


async def run_replica(settings: ReplicaSettings) -> int:
    """Run one replica until it is told to stop or its engine fails; returns the exit status."""
    async with aiohttp.ClientSession() as session:
        redis = Redis.from_url(settings.redis_url, socket_timeout=5, socket_connect_timeout=5)
        try:
            return await Agent(settings, redis, Engine(session, settings)).run()
        finally:
            await redis.aclose()
