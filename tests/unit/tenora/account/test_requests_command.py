"""What `tenora requests` prints of the request log, and how it follows it."""

import json

import pytest
from click.testing import CliRunner

from tenora.account import command
from tenora.cli import main

ROW = {
    "request_id": "req_1", "time": "2026-11-29T10:00:00Z", "outcome": "done", "model": "bot", "prompt_tokens": 10,
    "completion_tokens": 5, "whole_ms": 1000, "ttft_ms": 300, "price_nanos": 12_300_000, "code": None, "limit": None,
}  # fmt: skip
REFUSED = ROW | {
    "request_id": "req_2", "outcome": "refused", "model": "x\x1b[2J", "prompt_tokens": None, "completion_tokens": None,
    "whole_ms": None, "ttft_ms": None, "price_nanos": None, "code": "rate_limit_exceeded",
    "limit": "tenant.requests_per_minute",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch):
    """Run the command on a log whose newest page is each of these in turn; then Ctrl-C is pressed."""

    def ran(pages: list[list[dict]], *arguments: str):
        looks = iter(pages)
        asked = []

        def look(_client, filters, *, items=100):
            asked.append((filters, items))
            return iter([{"data": next(looks), "next_cursor": None}])

        def pause(_: float) -> None:
            if len(asked) == len(pages):
                raise KeyboardInterrupt

        monkeypatch.setattr("tenora.client.Tenora.requests", look)
        monkeypatch.setattr(command.time, "sleep", pause)
        access = {"TENORA_API_KEY": "tnr_live_x", "TENORA_CONTROL_URL": "http://c"}
        return CliRunner().invoke(main, ["requests", *arguments], env=access), asked

    return ran


def test_requests_are_shown_with_what_they_took_and_refusals_with_their_reason(run):
    done, asked = run([[REFUSED, ROW]], "--model", "bot", "-n", "5")
    assert done.stdout.splitlines() == [
        "2026-11-29T10:00:00Z  req_1  bot  done  10+5 tokens, 1000 ms (first token 300 ms), $0.0123",
        "2026-11-29T10:00:00Z  req_2  x\\u001b[2J  refused rate_limit_exceeded tenant.requests_per_minute  0+0 tokens",
    ]
    assert asked == [({"model": "bot"}, 5)]


def test_following_shows_each_request_once_until_ctrl_c(run):
    third = ROW | {"request_id": "req_3"}
    done, _ = run([[ROW], [REFUSED, ROW], [REFUSED, ROW], [third, REFUSED, ROW]], "--follow", "--json")
    assert [json.loads(line)["request_id"] for line in done.stdout.splitlines()] == ["req_1", "req_2", "req_3"]
    assert done.exit_code == 0
