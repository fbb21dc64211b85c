"""Draws charts as SVG, as pure functions of rows. Each chart stands above a table of the same rows.

Lines and bars have classes for colours and patterns: the content security policy forbids styles in the markup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

WIDTH: Final = 720
HEIGHT: Final = 180
_LEFT, _BOTTOM, _TOP = 56, 22, 8
_LABELS_MAX: Final = 8
SERIES_MAX: Final = 7
_BAR_WIDTH_MAX: Final = 40
_BAR: Final = Markup('<rect class="s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')


@dataclass(frozen=True, kw_only=True)
class Series:
    """One colour of a chart: a value for each column."""

    name: str
    values: tuple[float, ...]


def stacked_bars(columns: Sequence[str], series: Sequence[Series], label: str) -> Markup:
    """Stacked bars, one for each column. ``label`` says what is shown to who cannot see it."""
    totals = [sum(each.values[place] for each in series) for place in range(len(columns))]
    top = _rounded_up(max(totals, default=0))
    plot_height, plot_width = HEIGHT - _TOP - _BOTTOM, WIDTH - _LEFT
    step = plot_width / max(1, len(columns))
    parts = [_grid(top, plot_height)]
    for place, column in enumerate(columns):
        y = float(HEIGHT - _BOTTOM)
        for number, each in enumerate(series):
            height = plot_height * each.values[place] / top
            if height <= 0:
                continue
            y -= height
            width = min(step * 0.76, _BAR_WIDTH_MAX)
            x, title = _LEFT + step * (place + 0.5) - width / 2, f"{column}: {each.name} {each.values[place]:,g}"
            parts.append(_BAR.format(number, x, y, width, height, title))
        if place % max(1, -(-len(columns) // _LABELS_MAX)) == 0:
            parts.append(_text(_LEFT + step * (place + 0.5), HEIGHT - 6, column, "middle"))
    return _svg(parts, label)


def usage_series(rows: Sequence[Mapping[str, Any]], metric: str, group: str | None) -> tuple[list[str], list[Series]]:
    """Columns and series of rows of ``/api/v1/usage``: the largest groups, and all others together."""
    starts = sorted({row["start"] for row in rows})
    place = {start: number for number, start in enumerate(starts)}
    sums: dict[str, list[float]] = {}
    for row in rows:
        name = str(row.get(group) or "base model") if group else metric.replace("_", " ")
        sums.setdefault(name, [0.0] * len(starts))[place[row["start"]]] += row.get(metric) or 0
    ordered = sorted(sums.items(), key=lambda each: -sum(each[1]))
    made = [Series(name=name, values=tuple(values)) for name, values in ordered[:SERIES_MAX]]
    if rest := ordered[SERIES_MAX:]:
        made.append(Series(name="other", values=tuple(map(sum, zip(*(values for _, values in rest), strict=True)))))
    return [_column(start) for start in starts], made


def _column(start: str) -> str:
    """A bucket's start as the label of its column."""
    return start[5:10] if start[11:16] == "00:00" else start[11:16]


def _grid(top: float, plot_height: float) -> Markup:
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT - _BOTTOM - plot_height * share
        lines.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, WIDTH, y, y))
        lines.append(_text(_LEFT - 6, y + 4, _short(top * share), "end"))
    return Markup("").join(lines)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _svg(parts: Sequence[Markup], label: str) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )


def _rounded_up(value: float) -> float:
    """The next number with one digit that is not zero, so that the grid has round labels."""
    if value <= 0:
        return 1
    scale = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 10.0 ** -len(f"{1 / value:.0f}")
    return scale * -(-value // scale)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
