"""One batch while its lines are sent: which of them wait, run and are due again. One thread uses it."""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Final, NamedTuple

from control_plane.batches.lines import LinePlan
from control_plane.batches.models import BatchRow
from control_plane.batches.pace import Pace

_STUCK_S: Final = 60.0


@dataclass(slots=True, eq=False)
class LineTry:
    """A line on its way to its result. ``may_have_run``: its answer must be asked for, even if its batch ends early,
    and its request's id stays the same until the number of the ``attempt`` grows. ``failures``: how often something
    broke. ``is_paid``: an attempt was billed, and its answer was lost. ``only_stored``: it is asked for, and does not
    run.
    """

    batch: "OpenBatch"
    plan: LinePlan
    may_have_run: bool = False
    request_id: str = ""
    attempt: int = 0
    failures: int = 0
    is_paid: bool = False
    only_stored: bool = False
    body: bytes = b""


class BatchEnd(NamedTuple):
    """How a batch ends, and why lines that did not run are left."""

    status: str
    code: str = ""
    message: str = ""


@dataclass(eq=False)
class OpenBatch:
    """``row`` and ``key_hash`` are read again each second. ``dead_models`` have the reason why all lines of a model
    fail. While it is not ``is_chosen``, another batch has its turn, and only lines that may have run are sent. The
    speed is measured from ``since``, when ``done_before`` lines were done.
    """

    row: BatchRow
    key_hash: str
    content: IO[bytes]
    pace: Pace
    since: datetime
    done_before: int
    waiting: deque[LineTry] = field(default_factory=deque)
    later: list[tuple[float, int, LineTry]] = field(default_factory=list)
    unsettled: list[tuple[float, int, LineTry]] = field(default_factory=list)
    running: int = 0
    is_chosen: bool = True
    moved_at_s: float = 0.0
    is_refused: bool = False
    rests_until_s: float = 0.0
    dead_models: dict[str, tuple[str, str]] = field(default_factory=dict)
    end: BatchEnd | None = None

    def add(self, line: LineTry) -> None:
        """Send a line, after those that were added before."""
        if line.may_have_run:
            self.unsettled.append((0.0, len(self.unsettled), line))
        else:
            self.waiting.append(line)

    def has_due(self, now_s: float) -> bool:
        """Whether ``next_line`` has one, and it may begin now."""
        if self.running >= self.pace.limit or now_s < self.rests_until_s:
            return False
        later = self.is_chosen and (bool(self.waiting) or _is_due(self.later, now_s))
        return later or _is_due(self.unsettled, now_s)

    def next_line(self, now_s: float) -> LineTry:
        """The line to send next. ``has_due`` says whether there is one."""
        for heap in (self.unsettled, self.later):
            if _is_due(heap, now_s):
                return heapq.heappop(heap)[2]
        return self.waiting.popleft()

    def send_later(self, line: LineTry, due_s: float) -> None:
        """Send a line again at this monotonic time. Where the batch ends early, one that never ran is left."""
        if line.may_have_run or self.end is None:
            heapq.heappush(self.unsettled if line.may_have_run else self.later, (due_s, line.plan.line, line))

    def answered(self, now_s: float) -> None:
        """A line got its result."""
        self.pace.answered()
        self.moved_at_s, self.is_refused = now_s, False

    def refused(self, now_s: float) -> None:
        """A line was refused for lack of room."""
        self.pace.refused(now_s)
        self.is_refused = True

    def is_stuck(self, now_s: float) -> bool:
        """Whether lines are refused, and none got its result for some time."""
        return self.is_refused and now_s - self.moved_at_s > _STUCK_S

    def stop(self, end: BatchEnd) -> None:
        """Send no further line. What runs ends; lines that may have run are asked for their answers."""
        self.end = self.end or end
        self.waiting.clear()
        self.later.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no line runs, and none may have run without a result: all else can be read again."""
        return not self.running and not self.unsettled

    @property
    def is_over(self) -> bool:
        """Whether no line waits or runs."""
        return self.is_idle and not self.waiting and not self.later


def _is_due(heap: list[tuple[float, int, LineTry]], now_s: float) -> bool:
    return bool(heap) and heap[0][0] <= now_s


def chosen(rows: Sequence[BatchRow], most: int, put_back: Mapping[str, int]) -> list[BatchRow]:
    """The batches that run now: by ``rank``, in turn over the tenants. Those that were put back because they were stuck
    come last, the longest ago first. Pure.
    """
    turns: Counter[str] = Counter()
    ranked = []
    for row in sorted(rows, key=lambda row: (put_back.get(row.id, 0), rank(row))):
        turns[row.tenant_id] += 1
        ranked.append((put_back.get(row.id, 0), turns[row.tenant_id], rank(row), row))
    return [row for *_, row in sorted(ranked, key=lambda each: each[:3])[:most]]


def rank(row: BatchRow) -> tuple[bool, int, str]:
    """The order of one tenant's batches: those in danger first, then by priority and age."""
    return row.service_class == "batch", row.priority, row.id
