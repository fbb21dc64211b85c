"""Only the exchange's own bytes pass its check, and figures calculated by hand are reproduced."""

import pytest

from benchmarks.gateway.client import LoadReport
from benchmarks.gateway.exchange import (
    DONE,
    EVENTS,
    PIECES,
    Script,
    check_stream,
    check_whole,
    head,
    request_body,
    understood,
)
from benchmarks.gateway.figures import Measured, Rounds, by_cpu, doubts, judged, rows, table
from benchmarks.process_usage import Usage
from benchmarks.streams.__main__ import Plan, Sample, findings

SCRIPT = Script(prompt_tokens=7)


def stream(*, continuous: bool = False, script: Script = SCRIPT) -> list[bytes]:
    return [head(b"req_1", chunk=True) + tail for tail in script.tails(continuous=continuous)] + [DONE]


@pytest.mark.parametrize("continuous", [False, True])
def test_the_exchange_is_thirty_one_events_of_8441_content_bytes(continuous):
    events = stream(continuous=continuous)
    assert len(events) == EVENTS
    assert len(PIECES) == 27
    assert len("".join(PIECES).encode()) == 8441
    if not continuous:
        assert check_stream(b"".join(events), 7) == EVENTS


@pytest.mark.parametrize(
    "damage",
    [
        lambda events: events[:-1],
        lambda events: [*events[:4], events[5], events[4], *events[6:]],
        lambda events: [*events[:-2], *stream(script=Script(prompt_tokens=8))[-2:]],
        lambda events: [event.replace(b"xxxx", b"xxx", 1) for event in events],
        lambda events: [event.replace("🙂".encode(), "🙂".encode()[:2]) for event in events],
    ],
    ids=["no end", "two swapped", "another usage", "one byte lost", "half a glyph"],
)
def test_a_stream_that_is_not_as_sent_is_an_error(damage):
    with pytest.raises(ValueError, match=r"differs|end|decoded|data: "):
        check_stream(b"".join(damage(stream())), 7)


def test_a_whole_answer_is_also_checked():
    whole = head(b"req_1", chunk=False) + SCRIPT.whole()
    assert check_whole(whole, 7) == 1
    with pytest.raises(ValueError, match="the answer differs"):
        check_whole(whole.replace(b"xxxx", b"xxx", 1), 7)


def test_the_upstream_refuses_a_request_that_a_relay_changed():
    assert understood(request_body(stream=True)).stream
    for changed in (
        request_body(stream=True).replace(b"boots", b"shoes"),
        request_body(stream=True).replace(b"kindly", b"firmly"),
        request_body(stream=True).replace(b'"include_usage":true', b'"include_usage":false'),
        request_body(stream=False, model="another"),
    ):
        with pytest.raises(ValueError, match=r"differ|include_usage"):
            understood(changed)


def measured(contender: str, kind: str, number: int, per_s: float, **changes: object) -> Measured:
    seen = {
        "served": 100, "completed": 90, "errors": 0, "error_examples": [], "per_s": per_s, "events": {31: 100},
        "first_ms": [11.0, 13.0], "gap_ms": [1.0, 1.1],
        "event_gap_ms": [1.0, 1.05], "total_ms": [45.0, 50.0], "late_ms": [0.0, 0.1], "busy": 0.3,
        "cpu_s": 0.5, **changes,
    }  # fmt: skip
    return Measured(
        contender=contender, round=number, kind=kind, seen=LoadReport(**seen), cpu_us=620.0, store_cpu_us=40.0,
        rss_bytes=64 << 20, busy={"generator": 0.3, "other core": 0.95 if kind == "paced" else 0.5},
    )  # fmt: skip


def test_ratios_are_taken_within_rounds_and_missing_measurements_are_named():
    rounds = Rounds(
        [measured("relay", "paced", number, 1000 * (number + 1)) for number in range(3)]
        + [measured("tenora", "paced", number, 700 * (number + 1)) for number in range(3)]
        + [measured("tenora", "half", number, 350, first_ms=[11.5, 15.5], gap_ms=[1.0, 1.25]) for number in range(3)]
        + [measured("tenora", "half_direct", number, 350) for number in range(3)]
    )
    goals = {goal["goal"]: goal for goal in judged(rounds)}
    assert goals["paced streams/s, to relay"]["seen"] == 0.7
    assert goals["paced streams/s, to relay"]["met"] is True
    assert goals["paced streams/s, to litellm"] == {
        "goal": "paced streams/s, to litellm", "bound": ">= 20.0", "seen": None, "met": None,
    }  # fmt: skip
    assert goals["added TTFT p99 at half load, ms"]["seen"] == 2.5
    assert goals["added gap p99 at half load, ms"]["seen"] == pytest.approx(0.15)
    row = next(row for row in rows(rounds) if row["contender"] == "tenora")
    assert (row["cpu_us_per_stream"], row["cpu_us_per_event"], row["whole_per_s"]) == (620, 20, None)
    assert "tenora" in table(rows(rounds))
    assert by_cpu(rounds) == [{"to": "relay", "whole": None, "burst": None, "paced": 1.0}]
    assert doubts(rounds) == [f"{name}, paced: other core 95% of a core" for name in ("relay", "tenora")]


def test_memory_per_stream_is_the_growth_above_the_baseline():
    plan = Plan(streams=200, gateways=2, ticks=5, ramp_s=2, duration_s=60)
    baseline = [Usage(cpu_s=1, rss_bytes=100 << 20, files=20)] * 2
    progress = {"running": 200, "ended": 50, "errors": 0}
    report = {"served": 50, "errors": 0, "error_examples": [], "gap_ms": [1000, 1003, 1010]}
    samples = [
        Sample(
            progress={**progress, "at_s": float(second)},
            gateways=[
                Usage(cpu_s=1 + second / 4, rss_bytes=(100 << 20) + 100 * 30 * 1024, files=220),
                Usage(cpu_s=1, rss_bytes=(100 << 20) + second * 1024, files=220),
            ],
        )
        for second in range(1, 60)
    ]
    found = findings(plan, baseline, samples, report)
    assert found["kib_per_stream"][0] == 30
    assert found["kib_per_minute"] == pytest.approx([0, 60], abs=0.1)
    assert found["cores"] == pytest.approx([0.25, 0])
