"""What an agent publishes at its start, with an engine that is ready at once."""

import signal
from types import SimpleNamespace

from data_plane.engine.agent.agent import Agent
from data_plane.engine.agent.engine_client import EngineMetrics, ProbeTokens
from data_plane.engine.agent.engine_files import EngineFiles
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.settings import ReplicaSettings
from tests.fixtures import processes
from tests.fixtures.snapshot_keys import PUBLIC_KEYS


class Engine:
    async def metrics(self) -> EngineMetrics:
        return EngineMetrics(
            prompt_tokens=0, generation_tokens=0, running=0, waiting=0, kv_used=0, blocks=1, block_tokens=32
        )

    async def probe(self) -> tuple[int, int]:
        return 1, 1


class Publications:
    """Statuses as the agent published them. The first one of an engine that serves stops the agent."""

    def __init__(self) -> None:
        self.states: list[str] = []

    async def publish(self, state, engine=None, residency=None, *, reason="") -> bool:
        self.states.append(state)
        if state == "ready":
            signal.raise_signal(signal.SIGTERM)
        return False

    async def withdraw(self) -> None:
        self.states.append("withdrawn")


async def nothing() -> None:
    return None


async def no_failure() -> str:
    return ""


async def test_each_state_of_a_fast_start_is_published_once():
    settings = ReplicaSettings(
        model_path="/", engine_key=processes.ENGINE_KEY, snapshot_public_keys=PUBLIC_KEYS, heartbeat_s=10,
        status_ttl_s=60, drain_s=0,
    )  # fmt: skip
    tasks = SimpleNamespace(
        store=SimpleNamespace(run_once=nothing, was_readable=True, reason=""), cordons=SimpleNamespace(reason=""),
        enforce_revocations=nothing, start=lambda: None, close=nothing, report_usage=nothing, residency=None,
        is_idle=True, start_canary=SimpleNamespace(failure=no_failure),
    )  # fmt: skip
    process = SimpleNamespace(is_alive=True, stop=nothing)
    files = EngineFiles(settings, engine_name="an engine")
    published = Publications()
    agent = Agent(
        settings, Engine(), published, tasks, EngineState(), ProbeTokens(), files, start=lambda _model: process
    )
    assert await agent.claim_id()
    assert await agent.run_forever() == 0
    assert published.states == ["starting", "ready", "draining", "withdrawn"]
