"""Charts and numbers as pages show them."""

from datetime import UTC, datetime, timedelta

import pytest

from control_plane.console import charts, number_format

ROWS = [
    {"start": f"2026-11-0{day}T00:00:00Z", "key_id": f"key_{key}", "requests": key}
    for day in (1, 3)
    for key in range(10)
]
REPORT = {"start": "2026-10-31T00:00:00Z", "end": "2026-11-04T12:00:00Z", "data": ROWS}


def test_the_largest_groups_have_a_series_and_the_rest_is_other():
    _, series = charts.usage_series(REPORT, "requests", "key_id", "1d")
    assert [each.name for each in series] == [f"key_{key}" for key in range(9, 2, -1)] + ["other"]
    assert sum(sum(each.values) for each in series) == sum(row["requests"] for row in ROWS)


def test_buckets_without_usage_are_columns_too():
    columns, series = charts.usage_series(REPORT, "requests", None, "1d")
    assert columns == ["31 Oct", "1 Nov", "2 Nov", "3 Nov", "4 Nov"]
    assert series[0].values == (0, 45, 0, 45, 0)


def test_days_of_a_time_zone_are_named_by_its_dates():
    starts = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]  # Berlin, whose clock goes back between them
    rows = [{"start": start, "requests": 1} for start in starts]
    report = {"start": starts[0], "end": "2026-10-26T23:00:00Z", "data": rows}
    assert charts.usage_series(report, "requests", None, "1d")[0] == ["25 Oct", "26 Oct"]


def test_an_axis_of_money_is_in_dollars_and_every_series_has_a_pattern():
    series = [charts.Series(name=name, values=(200_000_000,)) for name in ("a", "b")]
    drawn = charts.stacked_bars(["1 Nov"], series, "Cost by key", "usd")
    assert "<span>$0.40</span><span>$0.20</span><span>$0.00</span>" in drawn
    assert "1 Nov: total $0.40, a $0.20, b $0.20" in drawn
    assert drawn.count('fill="url(#cost-by-key-1)"') == 2  # its bar, and the legend


def test_the_phases_of_a_request_are_parts_of_one_bar():
    drawn = charts.segments([("waits", 100), ("loads", None), ("decode", 300)], "Phases")
    assert 'width="180.0"' in drawn
    assert 'width="540.0"' in drawn
    assert "decode 300 ms" in drawn
    assert "loads" not in drawn


def test_bars_fill_the_plot_and_names_are_escaped():
    drawn = charts.stacked_bars(["<b>"], [charts.Series(name="<i>", values=(3.0,))], "a & b")
    assert "<b>" not in drawn
    assert "&lt;i&gt; 3" in drawn
    assert 'aria-label="a &amp; b"' in drawn
    assert "style=" not in drawn


@pytest.mark.parametrize(
    ("nanos", "shown"),
    [(0, "$0.00"), (1, "$0.000000001"), (1_234_500_000_000, "$1,234.50"), (-5_000_000_000, "-$5.00")],
)
def test_amounts_are_shown_exactly(nanos, shown):
    assert number_format.usd(nanos) == shown


def test_times_are_relative_within_a_day():
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert number_format.ago(now - timedelta(minutes=5), now) == "5 min ago"
    assert number_format.ago(now + timedelta(hours=3), now) == "in 3 h"
    assert number_format.ago(now - timedelta(days=3), now) == "26 Nov 2026"
