"""Computes the figures of the gateway's benchmark: medians of rounds, ratios within rounds, goals and a table.

Pure functions; the measuring is in ``benchmarks.gateway.__main__``.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gateway.client import LoadReport
from benchmarks.gateway.exchange import EVENTS

KINDS: Final = ("whole", "burst", "paced", "half", "half_direct")
"""Kinds of load: complete answers; streams that arrive all at once; paced streams; paced streams at half the paced
rate; and the upstream itself at that half rate."""
_BUSY_MAX: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One load on one contender.

    CPU microseconds are of the contender's processes, per answered request. ``busy`` is the share of a core that each
    process used, by its name.
    """

    contender: str
    round: int
    kind: str
    seen: LoadReport
    cpu_us: float
    store_cpu_us: float
    rss_bytes: int
    busy: dict[str, float]


class Rounds:
    """All measurements, with medians over rounds."""

    def __init__(self, measured: list[Measured]) -> None:
        self._by_kind = {(each.contender, each.kind, each.round): each for each in measured}
        self.rounds = sorted({each.round for each in measured})
        self.contenders = list(dict.fromkeys(each.contender for each in measured))

    def all(self, contender: str, kind: str) -> list[Measured]:
        """The measurements of one kind of load on one contender, in the order of rounds."""
        found = [self._by_kind.get((contender, kind, each)) for each in self.rounds]
        return [each for each in found if each is not None]

    def median(self, contender: str, kind: str, figure: Callable[[Measured], float]) -> float | None:
        """The median over rounds; None when nothing was measured."""
        values = [figure(each) for each in self.all(contender, kind)]
        return statistics.median(values) if values else None

    def ratio(self, kind: str, of: str, to: str) -> float | None:
        """Answers per second of ``of`` divided by those of ``to``: the median of the ratios of each round."""
        pairs = zip(self.all(of, kind), self.all(to, kind), strict=False)
        ratios = [mine.seen.per_s / theirs.seen.per_s for mine, theirs in pairs if theirs.seen.per_s]
        return statistics.median(ratios) if ratios else None

    def added_ms(self, contender: str, figure: Callable[[LoadReport], float]) -> float | None:
        """A latency at half load minus the upstream's own at the same rate in the same round; median over rounds."""
        pairs = zip(self.all(contender, "half"), self.all(contender, "half_direct"), strict=False)
        added = [figure(through.seen) - figure(direct.seen) for through, direct in pairs]
        return statistics.median(added) if added else None


def rows(rounds: Rounds) -> list[dict[str, Any]]:
    """One summary per contender; all figures are medians over rounds."""

    def first(share: int) -> Callable[[LoadReport], float]:
        return lambda seen: seen.first_ms[share]

    def gap(share: int) -> Callable[[LoadReport], float]:
        return lambda seen: seen.gap_ms[share]

    return [
        {
            "contender": name,
            "whole_per_s": _rounded(rounds.median(name, "whole", _per_s), 1),
            "burst_streams_per_s": _rounded(rounds.median(name, "burst", _per_s), 1),
            "paced_streams_per_s": _rounded(rounds.median(name, "paced", _per_s), 1),
            "added_first_ms": [_rounded(rounds.added_ms(name, first(share)), 3) for share in (0, 1)],
            "added_gap_ms": [_rounded(rounds.added_ms(name, gap(share)), 3) for share in (0, 1)],
            "added_event_gap_p99_ms": _rounded(rounds.added_ms(name, lambda seen: seen.event_gap_ms[1]), 3),
            "cpu_us_per_request": _rounded(rounds.median(name, "whole", _cpu_us), 0),
            "cpu_us_per_stream": _rounded(rounds.median(name, "half", _cpu_us), 0),
            "cpu_us_per_event": _rounded(rounds.median(name, "half", lambda each: each.cpu_us / EVENTS), 1),
            "store_cpu_us_per_request": _rounded(rounds.median(name, "whole", lambda each: each.store_cpu_us), 0),
            "rss_mib": _rounded(rounds.median(name, "paced", lambda each: each.rss_bytes / 2**20), 1),
            "errors": sum(each.seen.errors for kind in KINDS for each in rounds.all(name, kind)),
            "events_per_stream": sorted({count for each in rounds.all(name, "paced") for count in each.seen.events}),
        }
        for name in rounds.contenders
    ]


def judged(rounds: Rounds) -> list[dict[str, Any]]:
    """Each goal with the measured value; ``met`` is None when a peer was not measured."""
    goals: list[dict[str, Any]] = []
    for to, least in (("litellm", 20.0), ("relay", 0.6), ("vllm-router", 0.6)):
        for kind, words in (("paced", "paced"), ("burst", "unpaced")):
            goals.append(_goal(f"{words} streams/s, to {to}", rounds.ratio(kind, "tenora", to), at_least=least))
    first = rounds.added_ms("tenora", lambda seen: seen.first_ms[1])
    gap = rounds.added_ms("tenora", lambda seen: seen.gap_ms[1])
    goals.append(_goal("added TTFT p99 at half load, ms", first, at_most=3.0))
    goals.append(_goal("added gap p99 at half load, ms", gap, at_most=0.2))
    return goals


def by_cpu(rounds: Rounds) -> list[dict[str, Any]]:
    """Tenora's streams per second of gateway CPU time, divided by those of each other contender.

    This is the ratio of streams per second on a core without other work. Other work on the machine changes it less
    than it changes any wall-clock figure.
    """

    def ratio(kind: str, to: str) -> float | None:
        pairs = zip(rounds.all("tenora", kind), rounds.all(to, kind), strict=False)
        ratios = [theirs.cpu_us / mine.cpu_us for mine, theirs in pairs if mine.cpu_us]
        return round(statistics.median(ratios), 3) if ratios else None

    return [
        {"to": to, **{kind: ratio(kind, to) for kind in ("whole", "burst", "paced")}}
        for to in rounds.contenders
        if to not in ("tenora", "upstream")
    ]


def doubts(rounds: Rounds) -> list[str]:
    """Loads whose measuring processes were short of CPU, so that a contender may be faster than its figure."""
    found = []
    for name in rounds.contenders:
        for kind in KINDS:
            for who in ("generator", "upstream", "other core"):
                busy = rounds.median(name, kind, lambda each, who=who: each.busy.get(who, 0.0))  # type: ignore[misc]  # mypy cannot type a default that binds a loop's variable
                if busy is not None and busy > _BUSY_MAX:
                    found.append(f"{name}, {kind}: {who} {busy:.0%} of a core")
    return found


def table(summaries: list[dict[str, Any]]) -> str:
    """A text table with one line per contender."""
    lines = [
        f"{'':>11}  req/s  streams/s  streams/s   added TTFT       added gap    CPU us    CPU us  CPU us    RSS",
        f"{'':>11}           (burst)    (paced)  p50/p99 ms      p50/p99 ms  /request   /stream  /event    MiB  errors",
    ]
    return "\n".join(lines + [_line(row) for row in summaries])


def _line(row: dict[str, Any]) -> str:
    added = [f"{_shown(row[each][0], 6, 2)}/{_shown(row[each][1], -8, 2)}" for each in _ADDED]
    return (
        f"{row['contender']:>11} {_shown(row['whole_per_s'], 6, 0)} {_shown(row['burst_streams_per_s'], 10, 0)} "
        f"{_shown(row['paced_streams_per_s'], 10, 0)} {' '.join(added)} {_shown(row['cpu_us_per_request'], 8, 0)} "
        f"{_shown(row['cpu_us_per_stream'], 9, 0)} {_shown(row['cpu_us_per_event'], 7, 1)} "
        f"{_shown(row['rss_mib'], 6, 0)} {row['errors']:>7}"
    )


_ADDED: Final = ("added_first_ms", "added_gap_ms")


def _goal(
    what: str, seen: float | None, *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    met = None
    if seen is not None:
        met = (at_least is None or seen >= at_least) and (at_most is None or seen <= at_most)
    goal = f">= {at_least}" if at_least is not None else f"<= {at_most}"
    return {"goal": what, "bound": goal, "seen": _rounded(seen, 3), "met": met}


def _per_s(each: Measured) -> float:
    return each.seen.per_s


def _cpu_us(each: Measured) -> float:
    return each.cpu_us


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _shown(value: float | None, width: int, digits: int) -> str:
    text = "–" if value is None else f"{value:.{digits}f}"
    return text.ljust(-width) if width < 0 else text.rjust(width)
