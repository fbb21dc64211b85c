"""Charts and numbers as pages show them."""

from datetime import UTC, datetime, timedelta

import pytest

from control_plane.console import charts, number_format

ROWS = [
    {"start": f"2026-11-0{day}T00:00:00Z", "key_id": f"key_{key}", "requests": key}
    for day in (1, 2)
    for key in range(10)
]


def test_the_largest_groups_have_a_series_and_the_rest_is_other():
    columns, series = charts.usage_series(ROWS, "requests", "key_id")
    assert columns == ["11-01", "11-02"]
    assert [each.name for each in series] == [f"key_{key}" for key in range(9, 2, -1)] + ["other"]
    assert sum(sum(each.values) for each in series) == sum(row["requests"] for row in ROWS)


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
