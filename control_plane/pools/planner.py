"""How many replicas a pool needs for the load that it shows now. Pure: what it remembers is in ``autoscaler``.

Neither GPU utilization nor the request rate counts: an engine that decodes is busy at any load, and requests differ by
a thousand times in what they take. KV pages decide admission, so they come first. The counts are those of all
replicas that should exist; replicas that start are part of them, and are not asked for twice.
"""

import math
from dataclasses import dataclass
from typing import Final

import msgspec

_LATENCY_GROWTH_MAX: Final = 2.0  # a pool at most doubles for its latency, then waits for what comes of it


class PoolSignals(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a pool, and what one of its replicas holds. ``ready`` replicas serve. Pages are KV pages: held by
    reservations, and of requests that wait or were just refused for lack of room. ``adapters`` are those that run or
    wait. The capacities are the tokens per second of one replica at which latency was missed; None where that has not
    happened. What no replica has published yet is 0.
    """

    ready: int
    pages_per_replica: int = 0
    slots_per_replica: int = 0
    held_pages: int = 0
    waiting_pages: int = 0
    waiting_requests: int = 0
    adapters: int = 0
    input_tokens_per_s: float = 0
    output_tokens_per_s: float = 0
    input_capacity: float | None = None
    output_capacity: float | None = None
    ttft_p95_ms: int | None = None
    itl_p95_ms: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return not (self.held_pages or self.waiting_pages or self.waiting_requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGoals:
    """``load`` is the share of what its replicas can do that a pool uses before it grows, and ``load_after`` the share
    that the others may use after one is given up. ``spare`` replicas run beside those that the load needs.
    """

    load: float
    load_after: float
    spare: int = 0
    ttft_ms: int | None = None
    itl_ms: int | None = None


def asks_to_grow(signals: PoolSignals, goals: PoolGoals) -> dict[str, int]:
    """The replicas that each signal asks for. The largest of them is needed now."""
    return _asks(signals, goals, 1.0, goals.load)


def asks_to_stay(signals: PoolSignals, goals: PoolGoals) -> dict[str, int]:
    """The same, if the pool should stay under its targets with a margin: what it may shrink to."""
    return _asks(signals, goals, goals.load_after / goals.load, goals.load_after)


def next_target(current: int, grow: int, stay: int | None, *, least: int, most: int) -> int:
    """A pool grows at once. It shrinks to ``stay``, the most that was asked for in the time that it waits before it
    shrinks; None while that time has not passed.
    """
    kept = current if stay is None else min(current, stay)
    return min(max(grow, kept, least), most)


def _asks(signals: PoolSignals, goals: PoolGoals, margin: float, load: float) -> dict[str, int]:
    late = max(_over(signals.ttft_p95_ms, goals.ttft_ms, margin), _over(signals.itl_p95_ms, goals.itl_ms, margin))
    asks = {
        "requests": 1 if signals.waiting_requests else 0,
        "pages": _replicas(signals.held_pages + signals.waiting_pages, signals.pages_per_replica * load),
        "latency": math.ceil(signals.ready * late) if late > 1 else 0,
        "prefill": _replicas(signals.input_tokens_per_s, (signals.input_capacity or 0) * load),
        "decode": _replicas(signals.output_tokens_per_s, (signals.output_capacity or 0) * load),
        "slots": _replicas(signals.adapters, signals.slots_per_replica * margin),
    }
    if goals.spare and not signals.is_idle:
        asks["redundancy"] = max(asks.values()) + goals.spare
    return asks


def _replicas(load: float, capacity: float) -> int:
    """Replicas that carry a load; a capacity that is not known asks for nothing."""
    return math.ceil(load / capacity) if capacity else 0


def _over(measured_ms: int | None, target_ms: int | None, margin: float) -> float:
    """A latency as a multiple of its target."""
    if measured_ms is None or target_ms is None:
        return 0.0
    return min(measured_ms / (target_ms * margin), _LATENCY_GROWTH_MAX)
