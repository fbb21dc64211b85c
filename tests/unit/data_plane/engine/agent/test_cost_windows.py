"""Windows of a replica's time: without gaps, one state each, and with the engine's own counts."""

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisGone

from core.contracts.costs import CostWindow
from data_plane.engine.agent.cost_windows import CostWindows
from data_plane.engine.agent.engine_client import ProbeTokens
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.settings import ReplicaSettings
from data_plane.engine.steps import STEPS_FILE, EngineSteps
from tests.fixtures import processes
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

BEGAN = 1_700_000_003_000  # 3 s after a border of 10 s windows


class FakeStream:
    """The part of a Redis client that the windows use."""

    def __init__(self) -> None:
        self.windows: list[CostWindow] = []
        self.gone = False

    def pipeline(self, *, transaction: bool):
        return self

    async def __aenter__(self):
        self._batch = []
        return self

    async def __aexit__(self, *_) -> None: ...

    def xadd(self, key, fields, *, maxlen, approximate) -> None:
        self._batch.append(msgspec.json.decode(fields["window"], type=CostWindow))

    async def execute(self) -> None:
        if self.gone:
            raise RedisGone
        self.windows += self._batch


class Boot:
    def __init__(self, run_dir) -> None:
        self.settings = ReplicaSettings(
            model_path="/", replica_id="rep_one", engine_run_dir=run_dir, engine_key=processes.ENGINE_KEY,
            snapshot_public_keys=PUBLIC_KEYS, cost_windows_unsent_max=3, pool="chat", pool_revision="0" * 64,
        )  # fmt: skip
        self.settings.run_dir.mkdir()
        self.redis, self.state, self.probes, self.now = FakeStream(), EngineState(), ProbeTokens(), BEGAN
        self.windows = CostWindows(
            self.settings, self.redis, self.state, self.probes, boot_id="boot_1", engine_name="vllm 0.32.0",
            device="cpu", now_ms=lambda: self.now,
        )  # fmt: skip

    async def at(self, seconds: float) -> None:
        self.now = BEGAN + round(seconds * 1_000)
        await self.windows.run_once()

    def engine(self, **counts) -> None:
        steps = EngineSteps(started_at_ms=BEGAN + 1, **counts)
        (self.settings.run_dir / STEPS_FILE).write_bytes(msgspec.json.encode(steps))

    @property
    def sent(self) -> list[tuple[str, int, int]]:
        return [(window.state, window.start_ms - BEGAN, window.end_ms - BEGAN) for window in self.redis.windows]


@pytest.fixture
def boot(tmp_path) -> Boot:
    return Boot(tmp_path)


async def test_windows_end_at_the_borders_and_at_changes_of_state(boot):
    await boot.at(6.9)
    assert boot.sent == []
    await boot.at(7.1)
    boot.state.state = "ready"
    await boot.at(9)
    await boot.at(17)
    assert boot.sent == [("starting", 0, 7_100), ("starting", 7_100, 9_000), ("ready", 9_000, 17_000)]
    assert [(window.sequence, window.pool) for window in boot.redis.windows] == [(0, "chat"), (1, "chat"), (2, "chat")]


async def test_a_window_holds_what_the_engine_counted_in_it(boot):
    boot.engine(busy_ns=1_500_000_000, steps=10, prefill_tokens=100, decode_tokens=90)
    boot.probes.add(2, 1)
    await boot.at(7)
    boot.engine(busy_ns=4_000_000_000, steps=30, prefill_tokens=100, decode_tokens=290, adapter_steps=20)
    await boot.at(17)
    first, second = boot.redis.windows
    assert (first.busy_ms, first.steps, first.prefill_tokens, first.probe_prefill_tokens) == (1_500, 10, 100, 2)
    assert (second.busy_ms, second.steps, second.prefill_tokens, second.decode_tokens) == (2_500, 20, 0, 200)
    assert (second.adapter_steps, second.probe_prefill_tokens) == (20, 0)


async def test_counters_of_an_earlier_engine_do_not_count(boot):
    steps = EngineSteps(started_at_ms=BEGAN - 1, busy_ns=10**9, steps=10)
    (boot.settings.run_dir / STEPS_FILE).write_bytes(msgspec.json.encode(steps))
    await boot.at(7)
    assert boot.redis.windows[0].steps == 0


async def test_windows_wait_while_redis_is_gone_and_the_oldest_are_lost(boot):
    boot.redis.gone = True
    for second in (7, 17, 27, 37, 47):
        with pytest.raises(RedisGone):
            await boot.at(second)
    boot.redis.gone = False
    await boot.at(48)
    assert [window.sequence for window in boot.redis.windows] == [2, 3, 4]


@pytest.mark.parametrize(("status", "final"), [(0, True), (1, False)])
async def test_the_last_window_says_whether_the_agent_ended_in_order(boot, status, final):
    async with boot.windows.reporting() as ended:
        boot.now += 2_000
        ended.exit_status = status
    assert [(window.final, window.end_ms - BEGAN) for window in boot.redis.windows][-1] == (final, 2_000)


async def test_an_agent_that_fails_ends_out_of_order(boot):
    boot.now += 2_000

    async def fail() -> None:
        async with boot.windows.reporting():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert not boot.redis.windows[-1].final
