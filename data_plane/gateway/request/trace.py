"""Chooses the requests to trace once they have ended, and builds each trace from the times that the request log has.

A span holds ids, names, counts and times, never a key or text of a prompt or an answer. Names are OpenTelemetry's
(https://opentelemetry.io/docs/specs/semconv/) where it has them. trace_exporter.py sends traces.
"""

import random
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.errors import Headers
from data_plane.gateway.request.request_log import COMPLETIONS
from data_plane.gateway.request.trace_exporter import TraceExporter
from data_plane.gateway.trace_settings import TraceSettings

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INTERNAL, _SERVER, _CLIENT = 1, 2, 3  # kinds of spans
_FAILED: Final = {"code": 2}
_SERVER_FAULT: Final = 500
_OPERATIONS: Final = {"chat": "chat", "completion": "text_completion", "embedding": "embeddings"}
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The caller's span, from a ``traceparent`` header."""

    trace_id: str
    span_id: str
    sampled: bool


def parent_of(headers: Headers) -> TraceParent | None:
    """The caller's span; None without exactly one valid header
    (https://www.w3.org/TR/trace-context/#traceparent-header).
    """
    found = [value for name, value in headers if name == b"traceparent"]
    parts = _TRACEPARENT.fullmatch(found[0]) if len(found) == 1 else None
    if parts is None:
        return None
    version, trace_id, span_id, flags, more = parts.groups()
    if version == b"ff" or (version == b"00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id.decode(), span_id.decode(), sampled=bool(int(flags, 16) & 1))


@dataclass(slots=True)
class Span:
    """One span with its parts; times are monotonic seconds. Attributes that are None are left out."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, object] = field(default_factory=dict)
    kind: int = _INTERNAL
    failed: bool = False
    parts: list["Span"] = field(default_factory=list)

    def part(self, name: str, start: float, end: float, **given: Any) -> "Span":
        """Add a part, cut to this span's time: what an engine reports of its times may not fit."""
        start = min(max(start, self.start), self.end)
        self.parts.append(made := Span(name, start, min(max(end, start), self.end), **given))
        return made


def span_of(phases: RequestPhases, label: str, now: float, facts: Mapping[str, object], *, failed: bool) -> Span:
    """The spans of a request to the route ``label`` that ends now. ``facts`` are attributes of the whole."""
    details = phases.details
    whole = Span(
        f"POST {label}", phases.arrived_at, now, kind=_SERVER, failed=failed,
        attributes={
            "http.request.method": "POST",
            "http.route": label,
            "gen_ai.request.model": phases.model,
            "tenora.tenant_id": None if phases.caller is None else phases.caller.tenant.tenant_id,
            "tenora.outcome": None if phases.event is None else phases.event.outcome,
            "tenora.pool": None if details is None else details.pool,
            **facts,
        },
    )  # fmt: skip
    asked_at = phases.asked_at
    whole.part("authenticate and prepare", whole.start, now if asked_at is None else asked_at)
    if asked_at is not None:
        admitted_at = phases.admitted_at or now
        admission = whole.part("admit", asked_at, admitted_at)
        if phases.queued_at is not None:
            admission.part("queue", phases.queued_at, phases.left_queue_at or admitted_at)
    _add_attempts(whole, phases)
    if phases.ended_at is not None:
        whole.part("settle", phases.ended_at, phases.settled_at or now)
    return whole


def _add_attempts(whole: Span, phases: RequestPhases) -> None:
    """A part for each replica that got the request; all but the last failed before their first token."""
    request, event = phases.request, phases.event
    if request is None:
        return
    operation = _OPERATIONS[request.call.kind]
    ends = [*(sent_at for _, sent_at in phases.attempts[1:]), phases.ended_at or whole.end]
    for number, (replica_id, sent_at) in enumerate(phases.attempts, start=1):
        last = number == len(phases.attempts)
        attributes: dict[str, object] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": request.base_model,
            "tenora.replica_id": replica_id,
            "tenora.adapter_id": None if request.target.adapter is None else request.target.adapter.route.adapter_id,
        }
        if last and event is not None:
            reason = None if phases.details is None else phases.details.finish_reason
            attributes |= {
                "gen_ai.usage.input_tokens": event.input_tokens,
                "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
                "gen_ai.usage.output_tokens": event.output_tokens,
                "gen_ai.response.finish_reasons": None if reason is None else [reason],
            }
        failed = not last or event is None or event.outcome in {"replica_gone", "timeout"}
        name = f"{operation} {request.base_model}"
        run = whole.part(name, sent_at, ends[number - 1], kind=_CLIENT, failed=failed, attributes=attributes)
        if last:
            _add_generation(run, phases)


def _add_generation(run: Span, phases: RequestPhases) -> None:
    """The parts of a run on its replica, as far as a stream and its engine show them."""
    event, first_at, prefill_at = phases.event, phases.first_text_at, run.start
    if event is not None and event.adapter_tier is not None:
        tier = {"tenora.adapter_tier": event.adapter_tier}
        prefill_at = run.part("adapter load", run.start, run.start + event.adapter_load_ms / 1000, attributes=tier).end
    if first_at is not None:
        if phases.prefill_ms is not None:
            run.part("prefill", prefill_at, first_at)
        run.part("decode", first_at, run.end)


class _RateLimit:
    """So many a second, with a burst of one second's."""

    def __init__(self, per_s: int) -> None:
        self._per_s = self._left = float(per_s)
        self._at = 0.0

    def take(self, now: float) -> bool:
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Traces:
    """Chooses requests, and passes their traces to the exporter."""

    def __init__(self, settings: TraceSettings, exporter: TraceExporter) -> None:
        self._exporter = exporter
        self._share = settings.trace_share
        self._first_token_ms = settings.trace_first_token_ms
        self._itl_ms = settings.trace_itl_ms
        self._all = _RateLimit(settings.traces_per_s_max)
        self._of_callers = _RateLimit(settings.traces_of_callers_per_s_max)

    def ended(self, client: Client, request_id: str, label: str, error: AppError | None) -> None:
        """A request to the route ``label`` has been answered, with ``error`` if there is one."""
        if not self._exporter.enabled or label not in COMPLETIONS or client.method != "POST":
            return
        phases, now = client.phases, time.monotonic()
        parent = parent_of(client.request_headers)
        code = phases.details.code if error is None and phases.details is not None else None
        failed = code is not None if error is None else error.status >= _SERVER_FAULT
        reason = "error" if failed else self._reason(phases, parent, now)
        if reason is None:
            return
        if not self._all.take(now):
            metrics.TRACES_DROPPED.labels("rate").inc()
            return
        metrics.TRACES.labels(reason).inc()
        facts = {
            "http.response.status_code": client.status or None,
            "error.type": code if error is None else error.code,
            "tenora.request_id": request_id,
            "tenora.trace_reason": reason,
        }
        span = span_of(phases, label, now, facts, failed=failed)
        phases.trace_id = secrets.token_hex(16) if parent is None else parent.trace_id
        parent_id = "" if parent is None else parent.span_id
        zero_ns = time.time_ns() - round(now * 1e9)
        spans = list(_otlp(span, phases.trace_id, parent_id, zero_ns))
        self._exporter.add(_ENCODER.encode(spans)[1:-1])

    def _reason(self, phases: RequestPhases, parent: TraceParent | None, now: float) -> str | None:
        """Why to trace a request that did not fail; None to leave it out."""
        if self._missed_target(phases):
            return "slow"
        if parent is not None and parent.sampled and self._of_callers.take(now):
            return "caller"
        return "share" if random.random() < self._share else None  # noqa: S311 - a sample, not secrecy

    def _missed_target(self, phases: RequestPhases) -> bool:
        """Batch requests have no targets: they wait for all others."""
        event, details = phases.event, phases.details
        if event is None or details is None or event.service_class == "batch":
            return False
        return (event.first_token_ms or 0) > self._first_token_ms or (details.itl_p95_ms or 0) > self._itl_ms


def _otlp(span: Span, trace_id: str, parent_id: str, zero_ns: int) -> Iterator[dict[str, object]]:
    """The span and its parts in OTLP's JSON form: ids in hexadecimal, 64-bit integers as strings."""
    span_id = secrets.token_hex(8)
    yield {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(zero_ns + round(span.start * 1e9)),
        "endTimeUnixNano": str(zero_ns + round(span.end * 1e9)),
        "attributes": [
            {"key": name, "value": _otlp_value(value)} for name, value in span.attributes.items() if value is not None
        ],
        "status": _FAILED if span.failed else {},
    }
    for part in span.parts:
        yield from _otlp(part, trace_id, span_id, zero_ns)


def _otlp_value(value: object) -> dict[str, object]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_otlp_value(each) for each in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
