"""Traces are of failed and slow requests, of callers who ask for one, and of a share of the rest; their spans nest."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes, http_attributes

from core.contracts.request_log import RequestDetails
from core.contracts.usage import UsageEvent
from core.errors import AppError, InvalidRequest, Unavailable
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.request import trace
from data_plane.gateway.request.trace import Span, TraceParent, Traces, parent_of, span_of
from tests.fixtures.control_plane.logged_requests import served
from tests.fixtures.gateway.otlp_collector import attributes
from tests.fixtures.gateway.requests import inference_request, settings_with

PARENT, CHILD = "ab" * 16, "cd" * 8
CHAT = "/v1/chat/completions"
KNOWN = {
    value
    for names in (error_attributes, gen_ai_attributes, http_attributes)
    for value in vars(names).values()
    if isinstance(value, str)
}


class Gateway:
    """Chooses requests by its own clock, without a share unless it is given."""

    def __init__(self, monkeypatch, **settings: object) -> None:
        self.now, self.spans = 1000.0, list[dict]()
        monkeypatch.setattr(trace, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 10**18))
        self.traces = Traces(
            settings_with(**{"trace_share": 0, **settings}), SimpleNamespace(enabled=True, add=self._add)
        )

    def _add(self, spans: bytes) -> None:
        self.spans = json.loads(b"[" + spans + b"]")

    def ended(self, error: AppError | None = None, parent: str = "", **changes: object) -> str | None:
        """Why it traced the request, whose event or details have these changes."""
        phases = finished(self.now - 1, *served(**changes))
        headers = [(b"traceparent", parent.encode())] if parent else []
        client = SimpleNamespace(phases=phases, request_headers=headers, method="POST", status=200)
        self.traces.ended(client, "req_1", CHAT, error)
        return None if phases.trace_id is None else str(attributes(*self.spans)["tenora.trace_reason"])


def finished(arrived_at: float, event: UsageEvent, details: RequestDetails) -> RequestPhases:
    phases = RequestPhases()
    phases.arrived_at = arrived_at
    phases.request = inference_request(adapter="a", rank=8)
    phases.model, phases.event, phases.details, phases.load_ms = "bot", event, details, event.adapter_load_ms
    phases.asked_at, phases.queued_at, phases.left_queue_at = arrived_at + 0.01, arrived_at + 0.02, arrived_at + 0.1
    phases.admitted_at, phases.first_text_at = arrived_at + 0.11, arrived_at + 0.5
    phases.attempts = [("rep_dead", arrived_at + 0.11), ("rep_one", arrived_at + 0.2)]
    phases.ended_at, phases.settled_at = arrived_at + 0.9, arrived_at + 0.95
    return phases


def test_a_trace_is_a_tree_from_the_key_to_the_settlement(monkeypatch):
    gateway = Gateway(monkeypatch)
    gateway.ended(parent=f"00-{PARENT}-{CHILD}-01", adapter_load_ms=100)
    spans = gateway.spans
    by_id = {span["spanId"]: span["name"] for span in spans} | {CHILD: "the caller's"}
    assert [(span["name"], by_id[span["parentSpanId"]]) for span in spans] == [
        (whole := f"POST {CHAT}", "the caller's"),
        ("authenticate and prepare", whole), ("admit", whole), ("queue", "admit"), ("chat m", whole),
        ("chat m", whole), ("adapter load", "chat m"), ("prefill", "chat m"), ("decode", "chat m"), ("settle", whole),
    ]  # fmt: skip
    assert [span["name"] for span in spans if span["status"]] == ["chat m"], "the replica that failed"
    lengths_ms = [(int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) // 1_000_000 for span in spans]
    assert lengths_ms == pytest.approx([1000, 10, 100, 80, 90, 700, 100, 200, 400, 50], abs=1)
    assert {name for span in spans for name in attributes(span) if not name.startswith("tenora.")} <= KNOWN


times = st.none() | st.floats(0, 10)


@given(st.data())
def test_spans_lie_within_their_parent_whatever_was_measured(data):
    phases = finished(5.0, *served(adapter_load_ms=data.draw(st.integers(0, 20_000))))
    for name in ("asked_at", "queued_at", "left_queue_at", "admitted_at", "first_text_at", "ended_at", "settled_at"):
        setattr(phases, name, data.draw(times))
    phases.attempts = [(f"rep_{at}", at) for at in data.draw(st.lists(st.floats(0, 10), max_size=3))]
    phases.event = data.draw(st.sampled_from([None, phases.event]))

    def check(span: Span) -> int:
        assert span.start <= span.end
        for part in span.parts:
            assert span.start <= part.start <= part.end <= span.end
        return 1 + sum(map(check, span.parts))

    assert check(span_of(phases, CHAT, 6.0, {}, failed=False)) <= 11


def test_failed_and_slow_requests_are_traced_and_others_not(monkeypatch):
    gateway = Gateway(monkeypatch, trace_first_token_ms=400, trace_itl_ms=50)
    assert gateway.ended() is None
    assert gateway.ended(Unavailable("No replica.", code="no_replica")) == "error"
    assert gateway.ended(InvalidRequest("Wrong.")) is None, "the caller's own fault"
    assert gateway.ended(outcome="replica_gone", code="replica_failed") == "error"
    assert gateway.ended(outcome="client_gone") is None
    assert gateway.ended(first_token_ms=401) == "slow"
    assert gateway.ended(first_token_ms=None, itl_p95_ms=51) == "slow"
    assert gateway.ended(first_token_ms=401, service_class="batch") is None


def test_a_share_of_the_rest_is_traced(monkeypatch):
    gateway = Gateway(monkeypatch, trace_share=0.25)
    draws = iter([0.1, 0.3, 0.24, 0.25])
    monkeypatch.setattr(trace, "random", SimpleNamespace(random=lambda: next(draws)))
    assert [gateway.ended() for _ in range(4)] == ["share", None, "share", None]


def test_callers_choose_traces_within_their_limit_and_all_traces_have_one(monkeypatch):
    gateway = Gateway(monkeypatch, traces_per_s_max=5, traces_of_callers_per_s_max=2)
    chosen, other = f"00-{PARENT}-{CHILD}-01", f"00-{PARENT}-{CHILD}-00"
    assert [gateway.ended(parent=chosen) for _ in range(4)] == ["caller", "caller", None, None]
    assert gateway.ended(parent=other) is None
    assert [gateway.ended(first_token_ms=9000) for _ in range(4)] == ["slow"] * 3 + [None]
    gateway.now += 0.5
    assert [gateway.ended(parent=chosen) for _ in range(2)] == ["caller", None]


VALID = {f"00-{PARENT}-{CHILD}-01": True, f"00-{PARENT}-{CHILD}-02": False, f"cc-{PARENT}-{CHILD}-03-later": True}


@pytest.mark.parametrize("value", VALID)
def test_a_valid_traceparent_is_the_parent(value):
    assert parent_of([(b"traceparent", value.encode())]) == TraceParent(PARENT, CHILD, sampled=VALID[value])


@pytest.mark.parametrize(
    "value",
    [
        f"ff-{PARENT}-{CHILD}-01", f"00-{PARENT}-{CHILD}-01-more", f"cc-{PARENT}-{CHILD}-01more",
        f"00-{PARENT.upper()}-{CHILD}-01", f"00-{'0' * 32}-{CHILD}-01", f"00-{PARENT}-{'0' * 16}-01",
        f"00-{PARENT}-{CHILD}", f"00-{PARENT}-{CHILD}-01\n", f"00-{PARENT}-{CHILD}-0g",
    ],
)  # fmt: skip
def test_any_other_traceparent_is_ignored_and_so_are_two(value):
    assert parent_of([(b"traceparent", value.encode())]) is None
    assert parent_of([(b"traceparent", each.encode()) for each in VALID]) is None
