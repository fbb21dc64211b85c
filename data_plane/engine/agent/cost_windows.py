"""Reports the replica's time by state and its engine's steps to billing, one window after another.

The first window begins when the agent has the replica's id, before its engine starts; the last one ends with the agent.
Fails open: a replica serves without its windows, which wait in memory while Redis does not answer. Billing shows
unreported time as lost.
"""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import clock, redis_keys
from core.contracts.costs import CostWindow, WindowState
from data_plane.engine.agent import metrics
from data_plane.engine.agent.background_tasks import BackgroundTasks
from data_plane.engine.agent.engine_client import ProbeTokens
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.residency import ResidencyReader
from data_plane.engine.settings import ReplicaSettings
from data_plane.engine.steps import EngineSteps, read_steps

_log = structlog.get_logger()
_SEND_MAX = 100


class WorkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that grows with the engine's work, in the units of a CostWindow."""

    busy_ms: int = 0
    stall_ms: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0
    sequence_steps: int = 0
    adapter_steps: int = 0
    probe_prefill_tokens: int = 0
    probe_decode_tokens: int = 0


@dataclass
class AgentEnd:
    """How the agent ended. Without an exit status, it failed."""

    exit_status: int = 1


class CostWindows:
    """The windows of one boot."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        engine_state: EngineState,
        probes: ProbeTokens,
        *,
        boot_id: str,
        engine_name: str,
        device: str,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._engine_state = engine_state
        self._probes = probes
        self._boot_id, self._engine_name, self._device = boot_id, engine_name, device
        self._now_ms = now_ms
        self._window_ms = round(settings.cost_window_s * 1000)
        self._residency = ResidencyReader(settings.run_dir)
        self._begins_ms = now_ms()
        self._engine_began_ms = self._begins_ms
        self._state: WindowState = engine_state.state
        self._counted = WorkCounts()
        self._sequence = 0
        self._unsent: deque[CostWindow] = deque()

    @contextlib.asynccontextmanager
    async def reporting(self) -> AsyncIterator[AgentEnd]:
        """Report until the block ends, then send the last window: final when the agent's exit status is 0."""
        ended, tasks = AgentEnd(), BackgroundTasks(backoff_max_s=self._settings.background_task_backoff_max_s)
        tasks.start("cost windows", self.run_once, interval_s=self._settings.cost_window_poll_s)
        try:
            yield ended
        finally:
            await tasks.close()
            self._end_window(self._now_ms(), final=ended.exit_status == 0)
            try:
                await self._send()
            except (RedisError, OSError) as error:
                _log.warning("last cost windows not sent", windows=len(self._unsent), error=repr(error))

    async def run_once(self) -> None:
        """End the window when its time is over or the state has changed, and send what is unsent. Raises RedisError."""
        now_ms = self._now_ms()
        next_border_ms = (self._begins_ms // self._window_ms + 1) * self._window_ms
        if now_ms >= next_border_ms or self._engine_state.state != self._state:
            self._end_window(now_ms)
        await self._send()

    def _end_window(self, now_ms: int, *, final: bool = False) -> None:
        if now_ms <= self._begins_ms and not final:
            return  # the wall clock was set back
        counted = self._read()
        grown = {
            name: max(0, getattr(counted, name) - getattr(self._counted, name)) for name in WorkCounts.__struct_fields__
        }
        self._unsent.append(
            CostWindow(
                replica_id=self._settings.replica_id,
                boot_id=self._boot_id,
                sequence=self._sequence,
                base_model=self._settings.base_model,
                rank_max=self._settings.engine_rank_max,
                pool=self._settings.pool,
                engine=self._engine_name,
                device=self._device,
                state=self._state,
                start_ms=self._begins_ms,
                end_ms=max(now_ms, self._begins_ms + 1),
                final=final,
                **grown,
            )
        )
        self._begins_ms, self._state, self._counted = now_ms, self._engine_state.state, counted
        self._sequence += 1
        while len(self._unsent) > self._settings.cost_windows_unsent_max:
            self._unsent.popleft()
            metrics.COST_WINDOWS.labels("lost").inc()

    def _read(self) -> WorkCounts:
        """The counters now. Files that an earlier engine left in the run folder do not count."""
        steps = read_steps(self._settings.run_dir)
        if steps is None or steps.started_at_ms < self._engine_began_ms:
            steps = EngineSteps()
        table = self._residency.now()
        if table is not None and table.started_at_ms < self._engine_began_ms:
            table = None
        return WorkCounts(
            busy_ms=steps.busy_ns // 1_000_000,
            stall_ms=0 if table is None else table.step_stall_ms,
            steps=steps.steps,
            prefill_tokens=steps.prefill_tokens,
            decode_tokens=steps.decode_tokens,
            context_tokens=steps.context_tokens,
            sequence_steps=steps.sequence_steps,
            adapter_steps=steps.adapter_steps,
            probe_prefill_tokens=self._probes.prompt,
            probe_decode_tokens=self._probes.generation,
        )

    async def _send(self) -> None:
        while self._unsent:
            batch = [self._unsent[number] for number in range(min(_SEND_MAX, len(self._unsent)))]
            async with self._redis.pipeline(transaction=False) as pipe:
                for window in batch:
                    fields: dict[Any, Any] = {"window": msgspec.json.encode(window)}
                    pipe.xadd(
                        redis_keys.COST_WINDOWS,
                        fields,
                        maxlen=self._settings.cost_windows_stream_max,
                        approximate=True,
                    )
                await pipe.execute()
            for _ in batch:
                self._unsent.popleft()
            metrics.COST_WINDOWS.labels("sent").inc(len(batch))
