"""Wires one replica's agent: builds its objects with one HTTP session and one Redis client, and runs it."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import aiohttp
import structlog
from redis.asyncio import Redis

from core import telemetry
from core.ids import new_id
from data_plane.engine.agent.adapter_tasks import AdapterTasks
from data_plane.engine.agent.agent import Agent
from data_plane.engine.agent.cost_windows import CostWindows
from data_plane.engine.agent.engine_client import LocalEngine, ProbeTokens
from data_plane.engine.agent.engine_files import EngineFiles
from data_plane.engine.agent.engine_process import EngineProcess
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.agent.status_publisher import ReplicaIdTaken, StatusPublisher, locked_run_dir
from data_plane.engine.engine_command import engine_argv, engine_env
from data_plane.engine.plugin import installed_engine
from data_plane.engine.settings import ReplicaSettings


async def run_replica(settings: ReplicaSettings) -> int:
    """Run one replica until it gets a stop signal or its engine fails. Returns the exit status."""

    def start_engine(model: Path) -> EngineProcess:
        environment = engine_env(settings, device, dict(os.environ))
        return EngineProcess(engine_argv(settings, model, device), environment, device=device)

    device, version = installed_engine()
    return await run_with_engine(settings, start_engine, engine_name=f"vllm {version}", device=device)


async def run_with_engine(
    settings: ReplicaSettings, start: Callable[[Path], EngineProcess], *, engine_name: str = "unnamed", device: str = ""
) -> int:
    """Run one replica with the engine that ``start`` starts from a checkpoint's folder. Its costs are reported under
    ``engine_name`` and ``device``. Returns the exit status.
    """
    with contextlib.ExitStack() as held:
        try:
            run_dir_id = held.enter_context(locked_run_dir(settings))
        except ReplicaIdTaken as taken:
            structlog.get_logger().error("replica failed", reason=f"replica_id_taken: {taken}")
            return 1
        return await _run(settings, start, run_dir_id, engine_name=engine_name, device=device)


async def _run(
    settings: ReplicaSettings, start: Callable[[Path], EngineProcess], run_dir_id: str, *, engine_name: str, device: str
) -> int:
    boot_id, engine_state, probes = new_id("boot"), EngineState(), ProbeTokens()
    telemetry.report_readiness(lambda: "" if engine_state.state == "ready" else f"it is {engine_state.state}")
    async with aiohttp.ClientSession() as session:
        redis = Redis.from_url(settings.redis_url, socket_timeout=5, socket_connect_timeout=5)
        try:
            engine = LocalEngine(session, settings)
            publisher = StatusPublisher(settings, redis, url=engine.url, boot_id=boot_id, run_dir_id=run_dir_id)
            adapter_tasks = AdapterTasks(settings, redis, session, engine_state, probes, boot_id=boot_id)
            files = EngineFiles(settings, engine_name=f"{engine_name} {device}".rstrip())
            agent = Agent(settings, engine, publisher, adapter_tasks, engine_state, probes, files, start=start)
            if not await agent.claim_id():
                return agent.exit_status
            windows = CostWindows(
                settings, redis, engine_state, probes, boot_id=boot_id, engine_name=engine_name, device=device
            )
            async with windows.reporting() as ended:
                ended.exit_status = await agent.run_forever()
            return ended.exit_status
        finally:
            await redis.aclose()
