"""The rules that are compared: the product's, a queue-depth rule, and a rule of memory utilization."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.autoscale.pool import LEAST, MOST, TTFT_TARGET_MS
from control_plane.pools.autoscaler import PoolBounds, PoolScaler
from control_plane.pools.forecast import SlotNeed, expected_need, slot_of
from control_plane.pools.planner import PoolSignals
from control_plane.pools.settings import FleetSettings


class ProductRule:
    """The code of the fleet process. ``needs`` are those of earlier days, by slot, to which it adds its own; without
    any it forecasts nothing. ``start_s`` is what it knows of the time that a replica takes to start.
    """

    def __init__(self, settings: FleetSettings, start_s: float, needs: Mapping[int, float]) -> None:
        self._scaler = PoolScaler(settings, 0.0)
        self._bounds = PoolBounds(least=LEAST, most=MOST, ttft_ms=TTFT_TARGET_MS)
        self._start_s = start_s
        self.needs = dict(needs)
        self._running = SlotNeed(0)

    def target(self, now_s: float, current: int, signals: PoolSignals) -> int:
        """As the fleet process decides."""
        slot = slot_of(now_s)
        expected = expected_need(self.needs, slot, slot_of(now_s + self._start_s))
        decision = self._scaler.decide(current, self._bounds, signals, now_s, expected)
        if self._running.slot != slot:
            self._running = SlotNeed(slot)
        self._running.add(decision.need or 0)
        self.needs[slot] = self._running.mean
        return decision.target


@dataclass(slots=True)
class QueueDepthRule:
    """A replica more for each ``per_replica`` waiting requests, those counted that still start; a replica fewer when
    none has waited for ``calm_s``.
    """

    per_replica: int
    calm_s: float
    _waited_s: float = 0.0

    def target(self, now_s: float, current: int, signals: PoolSignals) -> int:
        """The next count."""
        if signals.waiting_requests:
            self._waited_s = now_s
        elif now_s - self._waited_s >= self.calm_s:
            self._waited_s = now_s
            return max(current - 1, LEAST)
        asked = signals.ready + math.ceil(signals.waiting_requests / self.per_replica)
        return min(max(asked, current), MOST)


@dataclass(slots=True)
class MemoryRule:
    """One replica more above 70 % of the KV pages, one fewer below 20 %, at most every 30 s."""

    _changed_s: float = 0.0

    def target(self, now_s: float, current: int, signals: PoolSignals) -> int:
        """One step, or none."""
        used = signals.held_pages / (signals.pages_per_replica * max(signals.ready, 1))
        step = (used > 0.7) - (used < 0.2)
        if not step or now_s - self._changed_s < 30:
            return current
        self._changed_s = now_s
        return min(max(current + step, LEAST), MOST)
