"""A pool of replicas in virtual time: admission by KV pages, a queue with patience, starts that take their time, and
drains. A rule decides every two seconds, as the fleet process does. Steps slow with the batch.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks.autoscale.traffic import HOUR_S, SimRequest
from control_plane.pools.planner import PoolSignals

PAGES: Final = 2700  # of one replica: about 30 requests
LEAST: Final = 1
MOST: Final = 20
TTFT_TARGET_MS: Final = 2000
_ROUND_S: Final = 2.0
_REPORT_S: Final = 1.0  # signals are as old
_PATIENCE_S: Final = 10.0
_WAITING_MAX: Final = 256
_PREFILL_TOKENS_PER_S: Final = 8000
_STEP_S: Final = 0.02
_STEP_OF_EACH_S: Final = 0.0004
_WINDOW_S: Final = 30.0
_REFUSED_S: Final = 5.0
_SAMPLES_MIN: Final = 20


def duration_s(request: SimRequest, batch: int) -> float:
    """Time on a replica whose batch is as large."""
    return request.prompt_tokens / _PREFILL_TOKENS_PER_S + request.output_tokens * (_STEP_S + _STEP_OF_EACH_S * batch)


class Rule(Protocol):
    """Decides how many replicas a pool should have."""

    def target(self, now_s: float, current: int, signals: PoolSignals) -> int:
        """The next count."""


@dataclass(slots=True, eq=False)
class _Replica:
    ready_at_s: float
    held: int = 0
    running: int = 0
    drains: bool = False


@dataclass(slots=True)
class RunResult:
    """What came of a run. ``cost_s`` are replica-seconds, those that start or drain too. ``history`` has the wanted
    count and the waiting requests of every round.
    """

    requests: int = 0
    misses: int = 0
    cost_s: float = 0.0
    history: list[tuple[float, int, int]] = field(default_factory=list)


class SimPool:
    """One run of one rule over one trace."""

    def __init__(self, rule: Rule, starts_s: Sequence[float], seed: int) -> None:
        self._rule = rule
        self._starts_s = starts_s
        self._dice = random.Random(seed)
        self._replicas = [_Replica(0.0)]
        self._waiting: deque[SimRequest] = deque()
        self._ends: list[tuple[float, int, _Replica, SimRequest]] = []
        self._numbers = itertools.count()
        self._refused: deque[tuple[float, int]] = deque()
        self._served: deque[tuple[float, SimRequest, float]] = deque()
        self._target = 1
        self.result = RunResult()

    def run(self, trace: Iterable[SimRequest]) -> RunResult:
        """Run the hour, and the requests that are left at its end."""
        arrivals = iter(trace)
        arriving = next(arrivals, None)
        seen: deque[tuple[float, PoolSignals]] = deque()
        round_at_s = report_at_s = 0.0
        while round_at_s < HOUR_S:
            report_at_s += _REPORT_S
            while True:
                at_s = arriving.at_s if arriving else report_at_s
                end_s = self._ends[0][0] if self._ends else report_at_s
                now_s = min(at_s, end_s, report_at_s)
                if now_s >= report_at_s:
                    break
                if end_s <= at_s:
                    self._end(now_s)
                elif arriving is not None:
                    self._arrive(arriving)
                    arriving = next(arrivals, None)
                self._assign(now_s)
            self._assign(report_at_s)
            seen.append((report_at_s, self._signals(report_at_s)))
            if report_at_s >= round_at_s + _ROUND_S:
                round_at_s = report_at_s
                signals = seen[-2][1] if len(seen) > 1 else seen[0][1]
                self._target = self._rule.target(round_at_s, self._target, signals)
                self._place(round_at_s)
                self.result.history.append((round_at_s, self._target, len(self._waiting)))
                seen.clear()
                seen.append((report_at_s, signals))
            self._replicas = [each for each in self._replicas if not each.drains or each.running]
            self.result.cost_s += _REPORT_S * len(self._replicas)
        return self.result

    def _arrive(self, request: SimRequest) -> None:
        self.result.requests += 1
        if len(self._waiting) >= _WAITING_MAX:
            self._miss(request.at_s, request)
        else:
            self._waiting.append(request)

    def _end(self, now_s: float) -> None:
        _, _, replica, request = heapq.heappop(self._ends)
        replica.held -= request.pages
        replica.running -= 1
        self._served.append((now_s, request, -1.0))

    def _assign(self, now_s: float) -> None:
        while self._waiting:
            request = self._waiting[0]
            waited_s = now_s - request.at_s
            if waited_s > _PATIENCE_S:
                self._waiting.popleft()
                self._miss(now_s, request)
                continue
            ready = [each for each in self._replicas if each.ready_at_s <= now_s and not each.drains]
            replica = min(ready, key=lambda each: each.held, default=None)
            if replica is None or replica.held + request.pages > PAGES:
                return
            self._waiting.popleft()
            replica.held += request.pages
            replica.running += 1
            ends_s = now_s + duration_s(request, replica.running)
            heapq.heappush(self._ends, (ends_s, next(self._numbers), replica, request))
            ttft_ms = (waited_s + request.prompt_tokens / _PREFILL_TOKENS_PER_S) * 1000
            self._served.append((now_s, request, ttft_ms))
            self.result.misses += ttft_ms > TTFT_TARGET_MS

    def _miss(self, now_s: float, request: SimRequest) -> None:
        self.result.misses += 1
        self._refused.append((now_s, request.pages))

    def _place(self, now_s: float) -> None:
        """As a placer: those that start go first, then the least loaded drain."""
        kept = [each for each in self._replicas if not each.drains]
        for _ in range(self._target - len(kept)):
            self._replicas.append(_Replica(now_s + self._dice.choice(self._starts_s)))
        surplus = sorted(kept, key=lambda each: (each.ready_at_s <= now_s, each.held))
        for each in surplus[: max(0, len(kept) - self._target)]:
            each.drains = True

    def _signals(self, now_s: float) -> PoolSignals:
        while self._refused and self._refused[0][0] < now_s - _REFUSED_S:
            self._refused.popleft()
        while self._served and self._served[0][0] < now_s - _WINDOW_S:
            self._served.popleft()
        ready = [each for each in self._replicas if each.ready_at_s <= now_s and not each.drains]
        ttft = sorted(ms for _, _, ms in self._served if ms >= 0)
        ended = [request for _, request, ms in self._served if ms < 0]
        waiting_pages = sum(request.pages for request in self._waiting) + sum(pages for _, pages in self._refused)
        return PoolSignals(
            ready=len(ready),
            pages_per_replica=PAGES,
            held_pages=sum(each.held for each in ready),
            waiting_pages=waiting_pages,
            waiting_requests=len(self._waiting) + len(self._refused),
            input_tokens_per_s=sum(request.prompt_tokens for request in ended) / _WINDOW_S,
            output_tokens_per_s=sum(request.output_tokens for request in ended) / _WINDOW_S,
            ttft_p95_ms=round(ttft[int(0.95 * (len(ttft) - 1))]) if len(ttft) >= _SAMPLES_MIN else None,
        )


def clairvoyant_cost_s(trace: Iterable[SimRequest], start_s: float) -> float:
    """Replica-seconds of a plan that knows the trace: just enough pages at each second that no request waits, and every
    replica started early enough. A replica that is needed again before another would have started stays.
    """
    changes = [0] * (int(HOUR_S) + 2)
    for request in trace:
        last = min(int(request.at_s + duration_s(request, PAGES // 90)), int(HOUR_S))
        changes[int(request.at_s)] += request.pages
        changes[last + 1] -= request.pages
    needed = [max(LEAST, -(-pages // PAGES)) for pages in itertools.accumulate(changes)][: int(HOUR_S)]
    ahead = round(start_s)
    return float(sum(max(needed[second : second + ahead + 1]) for second in range(len(needed))))
