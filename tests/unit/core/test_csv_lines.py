"""CSV cells that a spreadsheet may open: text is never a formula, numbers are exact."""

import csv
import io
from decimal import Decimal

import pytest

from core.csv_lines import csv_line, dollar_text, dollars, text_cell


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "  =1",
        "＝1",
        "＋1",
        "－1",
        "＠x",
        '=HYPERLINK("http://x","y")',
    ],
)
def test_text_that_a_spreadsheet_would_run_gets_a_quote(text):
    (row,) = csv.reader(io.StringIO(csv_line([text, "after"]), newline=""))
    assert row == [f"'{text}", "after"]


@pytest.mark.parametrize("text", ["", "support-bot", "a=b", "Ödön, Ltd.", 'say "hi"', "line\nbreak", "东京"])
def test_other_text_is_read_back_unchanged(text):
    (row,) = csv.reader(io.StringIO(csv_line([text, 1]), newline=""))
    assert row == [text, "1"]


def test_numbers_keep_their_sign_and_every_digit():
    line = csv_line([-5, Decimal("-0.000000001"), dollars(-1_500_000_000_000_000_001), None])
    assert line == "-5,-0.000000001,-1500000000.000000001,\r\n"


def test_nul_does_not_cut_a_file():
    assert text_cell("a\0b") == "a b"


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(0, "0.000000000"), (150, "0.000000150"), (-1, "-0.000000001"), (12_000_000_001, "12.000000001")],
)
def test_dollars_as_text_have_nine_decimals(nanos, text):
    assert dollar_text(nanos) == text
    assert dollars(nanos) == Decimal(text)
