"""Draws charts as SVG within HTML, as pure functions of rows. Each chart stands above a table of the same rows.

Only bars are stretched to the width of the page: labels are HTML, so they stay legible on a phone. Series have classes
for their colours and a pattern each, because the content security policy forbids styles in the markup.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from markupsafe import Markup

from control_plane.console import number_format
from core.periods import BUCKET_LENGTH, Bucket

WIDTH: Final = 720
HEIGHT: Final = 160
SERIES_MAX: Final = 7
_LABELS: Final = 5
_COLUMNS_MAX: Final = 800
_BAR_SHARE: Final = 0.72
_BAR_WIDTH_MAX: Final = 28
_HATCHES: Final = ("", "M0 0h6", "M0 0v6", "M0 6L6 0", "M0 0L6 6", "M0 3h6M3 0v6", "M0 6L6 0M0 0L6 6", "M2 2h2v2h-2z")
"""One for each series: the first is plain."""

_FIGURE: Final = Markup(
    '<figure class="plot"><div class="y" aria-hidden="true">{}</div>'
    '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" tabindex="0" aria-label="{}">{}</svg>'
    '<div class="x" aria-hidden="true">{}</div><output class="readout"></output>{}</figure>'
)
_COLUMN: Final = Markup('<g><title>{}</title><rect class="hit" x="{:.1f}" width="{:.1f}" height="{}"/>{}</g>')
_BAR: Final = Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" {}/>')
_PATTERN: Final = Markup(
    '<pattern id="{0}-{1}" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect class="s{1}" width="6" height="6"/><path class="hatch" d="{2}"/></pattern>'
)
_LINE: Final = Markup('<line class="grid" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
_SPAN: Final = Markup("<span>{}</span>")
_SWATCH: Final = Markup('<li><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true"><rect {}/></svg>{}</li>')

_NAMES: Final = {"amount_nanos": "cost"}

Unit = Literal["", "usd", "ms"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One colour of a chart: a value for each column."""

    name: str
    values: tuple[float, ...]


def stacked_bars(columns: Sequence[str], series: Sequence[Series], label: str, unit: Unit = "") -> Markup:
    """Stacked bars, one for each column, in nanodollars or milliseconds where ``unit`` says so. ``label`` says what is
    shown to people who cannot see it.
    """
    totals = [sum(each.values[place] for each in series) for place in range(len(columns))]
    top = _rounded_up(max(totals, default=0))
    step = WIDTH / max(1, len(columns))
    fills = _Fills(label, len(series))
    parts = [fills.definitions(), *(_LINE.format(WIDTH, y, y) for y in (0.5, HEIGHT / 2, HEIGHT - 0.5))]
    for place, column in enumerate(columns):
        values = [(each.name, each.values[place]) for each in series]
        bars, y = Markup(""), float(HEIGHT)
        for number, (_, value) in enumerate(values):
            height = HEIGHT * value / top
            y -= height
            if height > 0:
                width = min(step * _BAR_SHARE, _BAR_WIDTH_MAX)
                bars += _BAR.format(step * (place + 0.5) - width / 2, y, width, height, fills.of(number))
        parts.append(_COLUMN.format(_title(column, values, unit), step * place, step, HEIGHT, bars))
    ends = sorted({round(part * (len(columns) - 1) / (_LABELS - 1)) for part in range(_LABELS)}) if columns else []
    return _FIGURE.format(
        _spans(_text(top * share, unit) for share in (1, 0.5, 0)), WIDTH, HEIGHT, label, Markup("").join(parts),
        _spans(columns[place] for place in ends), fills.legend([each.name for each in series]),
    )  # fmt: skip


def segments(parts: Sequence[tuple[str, float | None]], label: str) -> Markup:
    """One bar of what followed each other, such as the phases of a request, in milliseconds. Unknown parts are left
    out.
    """
    known = [(name, value) for name, value in parts if value]
    whole = sum(value for _, value in known)
    fills, x, bars = _Fills(label, max(2, len(known))), 0.0, Markup("")
    for number, (_, value) in enumerate(known):
        width = WIDTH * value / whole
        bars += _BAR.format(x, 0, width, 24, fills.of(number))
        x += width
    return Markup(
        '<figure class="segments"><svg viewBox="0 0 {} 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}{}</svg>{}</figure>"
    ).format(WIDTH, label, fills.definitions(), bars, fills.legend([f"{n} {_text(v, 'ms')}" for n, v in known]))


def usage_series(
    report: Mapping[str, Any], metric: str, group: str | None, bucket: Bucket = "1h"
) -> tuple[list[str], list[Series]]:
    """Columns and series of an answer of ``/api/v1/usage``: the largest groups, and all others together. Buckets
    without usage, which the answer omits, are columns too.
    """
    starts = _starts(report, bucket)
    place = {start: number for number, start in enumerate(starts)}
    sums: dict[str, list[float]] = {}
    for row in report["data"]:
        name = str(row.get(group) or "base model") if group else _NAMES.get(metric, metric.replace("_", " "))
        at = place[datetime.fromisoformat(row["start"])]
        sums.setdefault(name, [0.0] * len(starts))[at] += row.get(metric) or 0
    ordered = sorted(sums.items(), key=lambda each: -sum(each[1]))
    made = [Series(name=name, values=tuple(values)) for name, values in ordered[:SERIES_MAX]]
    if rest := ordered[SERIES_MAX:]:
        made.append(Series(name="other", values=tuple(map(sum, zip(*(values for _, values in rest), strict=True)))))
    return [_label(start, bucket) for start in starts], made


def column_label(start: str, bucket: Bucket) -> str:
    """The label of the bucket that starts then."""
    return _label(datetime.fromisoformat(start), bucket)


def _starts(report: Mapping[str, Any], bucket: Bucket) -> list[datetime]:
    """The starts of all buckets of the range, in order. Days of a time zone may have 23 or 25 hours."""
    present = sorted({datetime.fromisoformat(row["start"]) for row in report["data"]})
    begin, end = datetime.fromisoformat(report["start"]), datetime.fromisoformat(report["end"])
    length = BUCKET_LENGTH[bucket]
    if not present or (end - begin) / length > _COLUMNS_MAX:
        return present
    at = present[0] - max(0, (present[0] - begin) // length) * length
    found: list[datetime] = []
    for start in present:
        while at < start - length / 2:
            found.append(at)
            at += length
        found.append(start)
        at = start + length
    while at < end:
        found.append(at)
        at += length
    return found


def _label(start: datetime, bucket: Bucket) -> str:
    """A bucket's start, to the minute unless it is a day. A zone's days begin up to 12 hours off midnight."""
    if bucket == "1d":
        return (start + timedelta(hours=12)).strftime("%-d %b")
    return start.strftime("%-d %b %H:%M")


def _title(column: str, values: Sequence[tuple[str, float]], unit: Unit) -> str:
    parts = [f"{name} {_text(value, unit)}" for name, value in values if value or len(values) == 1]
    total = [f"total {_text(sum(value for _, value in values), unit)}"] if len(values) > 1 else []
    return f"{column}: {', '.join([*total, *parts])}"


class _Fills:
    """The colours and patterns of a chart's series. Ids of patterns hold for a page, so they begin with the label."""

    def __init__(self, label: str, count: int) -> None:
        self._slug = re.sub(r"\W+", "-", label.lower()).strip("-") or "chart"
        self._count = count

    def definitions(self) -> Markup:
        patterns = [_PATTERN.format(self._slug, number, _HATCHES[number]) for number in range(1, self._count)]
        return Markup("<defs>{}</defs>").format(Markup("").join(patterns)) if patterns else Markup("")

    def of(self, number: int) -> Markup:
        """The attribute of a bar."""
        plain = Markup('class="s{}"').format(number)
        return Markup('fill="url(#{}-{})"').format(self._slug, number) if number else plain

    def legend(self, names: Sequence[str]) -> Markup:
        if len(names) < 2 and self._count < 2:
            return Markup("")
        swatches = [_SWATCH.format(self.of(number), name) for number, name in enumerate(names)]
        return Markup('<figcaption><ul class="legend">{}</ul></figcaption>').format(Markup("").join(swatches))


def _spans(texts: Iterable[str]) -> Markup:
    return Markup("").join(_SPAN.format(text) for text in texts)


def _rounded_up(value: float) -> float:
    """The next number with one digit that is not zero, so that the grid has round labels."""
    if value <= 0:
        return 1
    scale = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 10.0 ** -len(f"{1 / value:.0f}")
    return scale * -(-value // scale)


def _text(value: float, unit: Unit) -> str:
    """A value of a chart in its unit."""
    if unit == "usd":
        return number_format.usd(round(value))
    if unit == "ms":
        return number_format.ms(value)
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if value >= size and value % (size / 100) == 0:
            return f"{value / size:g} {letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
