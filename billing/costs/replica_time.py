"""A replica's time by state, from the windows that its agent reported. Pure: no clock and no tables.

An agent reports one window after another; each lies in one state. Time without a report is ``lost`` until the next
report of the same replica, and for at most the time after which a silent replica counts as given up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from billing.costs.rates import DatedRate, charge
from core.contracts.costs import CostWindow, WindowState

TimeState = Literal["starting", "busy", "idle", "draining", "lost"]
"""``busy``: the engine ran steps. ``idle``: it served and ran none. ``draining``: it took no requests and ran none.
``lost``: it was unhealthy and ran none, or did not report."""


_UNUSED: Final[Mapping[str, TimeState]] = {"ready": "idle", "draining": "draining", "unhealthy": "lost"}


class StateSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Time in one reported state, or ``lost``. Spans of one replica do not overlap. ``reported_ms`` is the start of the
    window that the span is, or of the last one before lost time: reports count the span to the hour of that instant.
    """

    start_ms: int
    end_ms: int
    state: WindowState | Literal["lost"]
    busy_ms: int = 0
    reported_ms: int = 0


def spans(windows: Iterable[CostWindow], *, now_ms: int, lost_after_ms: int) -> list[StateSpan]:
    """The time of one replica up to ``now_ms``, without gaps that are to be paid.

    A window that overlaps an earlier one (two clocks, or a window that was sent twice) counts only for the time after
    it. Busy time is never longer than its span.
    """
    found: list[StateSpan] = []
    before: CostWindow | None = None
    for window in sorted(windows, key=lambda each: (each.start_ms, each.end_ms, each.boot_id)):
        reached = found[-1].end_ms if found else window.start_ms
        if before is not None and not before.final:
            _add_lost(found, before, reached, window.start_ms, lost_after_ms)
        start_ms = max(window.start_ms, reached)
        if start_ms < window.end_ms:
            length = window.end_ms - start_ms
            found.append(
                StateSpan(
                    start_ms=start_ms,
                    end_ms=window.end_ms,
                    state=window.state,
                    busy_ms=min(max(window.busy_ms, 0), length),
                    reported_ms=window.start_ms,
                )
            )
        if before is None or window.end_ms >= before.end_ms:
            before = window
    if before is not None and not before.final:
        _add_lost(found, before, before.end_ms, now_ms, lost_after_ms)
    return found


def _add_lost(found: list[StateSpan], before: CostWindow, start_ms: int, end_ms: int, lost_after_ms: int) -> None:
    end_ms = min(end_ms, start_ms + lost_after_ms)
    if start_ms < end_ms:
        found.append(StateSpan(start_ms=start_ms, end_ms=end_ms, state="lost", reported_ms=before.start_ms))


def charges(found: Iterable[StateSpan], rates: Sequence[DatedRate]) -> Mapping[TimeState, int]:
    """Rate × time by state, in nanodollars per hour × milliseconds. The states add up to the charge of all spans.

    A starting or lost replica is never busy: its probes are part of its start. The busy part of a span is charged at
    the span's average rate.
    """
    total: Counter[TimeState] = Counter()
    for span in found:
        whole = charge(rates, span.start_ms, span.end_ms)
        if span.state in ("starting", "lost"):
            total[span.state] += whole
            continue
        busy = whole * span.busy_ms // (span.end_ms - span.start_ms)
        total["busy"] += busy
        total[_UNUSED[span.state]] += whole - busy
    return total
