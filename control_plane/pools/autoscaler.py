"""The targets of pools over time: what the planner asks for, and what has to be remembered for it.

A process that begins to decide remembers nothing. It lets every pool grow at once, and shrinks none before it has seen
it for as long as a pool waits before it shrinks.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from control_plane.pools.planner import PoolGoals, PoolSignals, asks_to_grow, asks_to_stay, next_target
from control_plane.pools.settings import FleetSettings
from core.contracts.replicas import ReplicaStatus

_CAPACITY_KEPT_S: Final = 3600.0
_SETTLED_S: Final = 30.0  # latencies are those of as many seconds, and the first of them saw fewer replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """What an admin has set for a pool."""

    least: int
    most: int
    ttft_ms: int | None = None
    itl_ms: int | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A target, the signal that asks for most, and what it was computed from."""

    target: int
    reason: str
    asks: dict[str, int] = {}
    signals: PoolSignals | None = None

    @property
    def need(self) -> int | None:
        """The replicas that the present load asks for; None without signals."""
        return max((ask for name, ask in self.asks.items() if name != "forecast"), default=None)

    def inputs(self, bounds: PoolBounds, settings: FleetSettings) -> dict[str, Any]:
        """All that it was computed from, for a reader years later."""
        return {
            "bounds": asdict(bounds),
            "settings": settings.model_dump(mode="json"),
            "asks": self.asks,
            "signals": None if self.signals is None else msgspec.to_builtins(self.signals),
        }


class PoolScaler:
    """One pool's target, round after round."""

    def __init__(self, settings: FleetSettings, now_s: float) -> None:
        self._settings = settings
        self._began_s = self._active_s = self._settled_s = now_s
        self._stays: deque[tuple[float, int]] = deque()  # what the pool could shrink to, falling from first to last
        self._size = (0, 0)
        self._ready = 0
        self._capacities: dict[str, tuple[float, float]] = {}  # by kind of token: tokens per second, and since when

    def decide(
        self, current: int, bounds: PoolBounds, signals: PoolSignals | None, now_s: float, expected: int | None = None
    ) -> Decision:
        """The next target. Without signals the pool keeps its count, within its bounds. ``expected`` is the forecast of
        what it will need when a replica that starts now is ready.
        """
        if bounds.least == bounds.most or signals is None:
            self._began_s = self._active_s = now_s
            self._stays.clear()
            target = min(max(current, bounds.least), bounds.most)
            return Decision(target=target, reason="bounds" if target != current else "unchanged")
        goals = PoolGoals(
            load=self._settings.fleet_load_percent / 100,
            load_after=self._settings.fleet_shrink_load_percent / 100,
            spare=self._settings.fleet_spare_replicas,
            ttft_ms=bounds.ttft_ms,
            itl_ms=bounds.itl_ms,
        )
        signals = self._completed(signals, bounds, now_s)
        if not signals.is_idle:
            self._active_s = now_s
        asks = asks_to_grow(signals, goals)
        if expected is not None:
            asks["forecast"] = expected
        least = bounds.least
        if current and now_s - self._active_s < self._settings.fleet_idle_s:
            least = max(least, 1)  # it has not been idle for long
        grow = max(asks.values())
        stay = self._stay(max(*asks_to_stay(signals, goals).values(), grow), now_s)
        target = next_target(current, grow, stay, least=least, most=bounds.most)
        if target == current:
            reason = "unchanged"
        elif target < current:
            reason = "less load" if current <= bounds.most else "bounds"
        else:
            reason = max(asks, key=lambda name: (asks[name], name != "redundancy")) if grow >= target else "bounds"
        return Decision(target=target, reason=reason, asks=asks, signals=signals)

    def _stay(self, ask: int, now_s: float) -> int | None:
        """The most that was asked for in the time before a pool shrinks; None until it has passed."""
        while self._stays and self._stays[-1][1] <= ask:
            self._stays.pop()
        self._stays.append((now_s, ask))
        oldest_s = now_s - self._settings.fleet_shrink_after_s
        while self._stays[0][0] < oldest_s:
            self._stays.popleft()
        return self._stays[0][1] if self._began_s <= oldest_s else None

    def _completed(self, signals: PoolSignals, bounds: PoolBounds, now_s: float) -> PoolSignals:
        """The signals with what was learned earlier, and without latencies of another number of replicas."""
        if signals.pages_per_replica:
            self._size = signals.pages_per_replica, signals.slots_per_replica
        if signals.ready != self._ready:
            self._ready, self._settled_s = signals.ready, now_s
        ttft_ms, itl_ms = signals.ttft_p95_ms, signals.itl_p95_ms
        if now_s - self._settled_s < _SETTLED_S:
            ttft_ms = itl_ms = None
        return msgspec.structs.replace(
            signals,
            pages_per_replica=self._size[0],
            slots_per_replica=self._size[1],
            ttft_p95_ms=ttft_ms,
            itl_p95_ms=itl_ms,
            input_capacity=self._capacity("input", signals.input_tokens_per_s, ttft_ms, bounds.ttft_ms, now_s),
            output_capacity=self._capacity("output", signals.output_tokens_per_s, itl_ms, bounds.itl_ms, now_s),
        )

    def _capacity(
        self, kind: str, tokens_per_s: float, measured_ms: int | None, target_ms: int | None, now_s: float
    ) -> float | None:
        """The tokens per second at which a replica last missed its latency. More tokens in time correct it."""
        known, since_s = self._capacities.get(kind, (0.0, -_CAPACITY_KEPT_S))
        if now_s - since_s >= _CAPACITY_KEPT_S:
            known = 0.0
        if measured_ms is not None and target_ms is not None and self._ready and tokens_per_s:
            each = tokens_per_s / self._ready
            missed = measured_ms > target_ms
            if missed or (known and each > known):
                known = each
                self._capacities[kind] = (each, now_s if missed else since_s)
        return known or None


@dataclass(slots=True)
class StartTimes:
    """How long replicas take from their first report to ready, by what their heartbeats show."""

    _starting: dict[tuple[str, str], float] = field(default_factory=dict)

    def observe(self, statuses: Iterable[ReplicaStatus], now_s: float) -> dict[str, float]:
        """The start time in seconds of each pool with a replica that has become ready since the last call."""
        measured: dict[str, float] = {}
        starting: dict[tuple[str, str], float] = {}
        for status in statuses:
            key = status.id, status.boot_id
            if status.state == "starting":
                starting[key] = self._starting.get(key, now_s)
            elif status.state == "ready" and key in self._starting and status.pool:
                measured[status.pool] = max(now_s - self._starting[key], measured.get(status.pool, 0.0))
        self._starting = starting
        return measured
