"""Reports about one request for its gateway: its KV page-time; where its adapter was, how long the request waited for
it, and for how long its load stalled every running request; after an abort, how much of the prompt had been computed;
of several sequences, the tokens of each, since vLLM reports the cached tokens of one only.

A report is a comment at the end of an event stream, and a header of any other answer. The KV page-time so far is also
reported while a stream runs, together with a token, so that a gateway that dies has a figure to bill. A stream begins
with the number of cached prompt tokens, which vLLM itself reports only at the end.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from data_plane.engine.kv_table import KvTableReader
from data_plane.engine.middleware.aborts import RunningRequest
from data_plane.engine.middleware.adapter_loader import LoadOutcome
from data_plane.engine.middleware.asgi import Message, Send
from data_plane.engine.residency import ResidencyReader

_LAST_EVENT: Final = b"data: [DONE]"


class StallReports:
    """Reports each stall once: with the first request of its adapter that ends after it."""

    def __init__(self, residency: ResidencyReader) -> None:
        self._residency = residency
        self._reported: dict[str, int] = {}

    def take_stall_ms(self, name: str) -> int:
        """Milliseconds for which steps waited for loads of this adapter and which were not reported yet."""
        if (table := self._residency.now()) is None or not table.loads:
            return 0
        reported = self._reported.get(name, 0)
        fresh = [load for load in table.loads if load.name == name and load.in_step and load.seq > reported]
        if fresh:
            first = table.loads[0].seq
            # Older records have left the table and cannot be reported again.
            self._reported = {each: seq for each, seq in self._reported.items() if seq >= first}
            self._reported[name] = fresh[-1].seq
        return round(sum(load.ms for load in fresh))

    def has_failed(self, name: str) -> bool:
        """Whether the engine generates under this adapter's name without having its weights."""
        table = self._residency.now()
        return table is not None and name in table.failed


class KvReports:
    """The KV page-time of one request, and when its stream reports it next."""

    def __init__(self, table: KvTableReader, engine_id: str, interval_s: float) -> None:
        self._table = table
        self._engine_id = engine_id
        self._interval_s = interval_s
        self._next_at = time.monotonic() + interval_s

    def is_due(self) -> bool:
        """Whether the stream should report now. True once in each interval."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def report(self) -> dict[bytes, bytes]:
        """The page-milliseconds so far; empty where the engine has not measured the request."""
        page_ms = self._table.page_ms(self._engine_id)
        return {} if page_ms is None else {b"tenora-kv-page-ms": b"%d" % page_ms}


class ReportingSend:
    """An ASGI ``send`` that adds the reports on one request to its answer. It holds the start of the answer back until
    there is a body, since a report may become a header.
    """

    def __init__(self, send: Send, running: RunningRequest, kv: KvReports) -> None:
        self._send = send
        self._running = running
        self._kv = kv
        self._start: Message | None = None
        self._streams = False
        self._reported = False
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Pass on one message of vLLM's answer."""
        if message["type"] == "http.response.start":
            self._start = message
            self._streams = any(
                key == b"content-type" and value.startswith(b"text/event-stream") for key, value in message["headers"]
            )
            return
        first = self._start is not None
        if self._start is not None:
            start, self._start = self._start, None
            if not self._streams:
                headers = [(b"x-" + name, value) for name, value in self._reports().items()]
                start["headers"] = [*start["headers"], *headers]
            self.started = True
            await self._send(start)
        await self._send(self._with_reports(message, first=first))

    def _with_reports(self, message: Message, *, first: bool) -> Message:
        content = bytes(message.get("body", b""))
        last = content.startswith(_LAST_EVENT) or not message.get("more_body")
        due = self._kv.is_due()
        if not self._streams or self._reported or not (first or last or due):
            return message
        self._reported = last
        reports = self._reports() if last else self._kv.report() if due else {}
        if first and (cached_tokens := self._running.cached_tokens) is not None:
            reports[b"tenora-cached-tokens"] = b"%d" % cached_tokens
        comments = [b": " + name + b" " + value + b"\n\n" for name, value in reports.items()]
        return {**message, "body": b"".join([*comments, content])}

    def _reports(self) -> dict[bytes, bytes]:
        """Reports by name, as JSON."""
        prefills = self._running.aborted_prefills
        reports = self._kv.report()
        if prefills is not None:
            reports[b"tenora-aborted"] = msgspec.json.encode(prefills)
        # Of one generated sequence, the answer's usage says it all; that of embeddings lacks the cached tokens.
        if len(self._running.states) > 1 or self._running.embeds:
            reports[b"tenora-sequences"] = msgspec.json.encode(self._running.counts())
        return reports


class AdapterReportingSend(ReportingSend):
    """A ``ReportingSend`` for a request for an adapter. It sends nothing more once the adapter has failed in a step: a
    failure before the body is still an error with a status.
    """

    def __init__(
        self,
        send: Send,
        running: RunningRequest,
        kv: KvReports,
        name: str,
        outcome: LoadOutcome,
        stalls: StallReports,
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(send, running, kv)
        self._on_failure = on_failure
        self._name = name
        self._outcome = outcome
        self._stalls = stalls
        self.failed = False

    async def __call__(self, message: Message) -> None:
        """Pass on one message of vLLM's answer, unless the adapter has failed."""
        if not self.failed and self._stalls.has_failed(self._name):
            self.failed = True
            self._on_failure()
        if not self.failed:
            await super().__call__(message)

    async def end_early(self) -> None:
        """End an answer that has started and whose rest must not be sent."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _reports(self) -> dict[bytes, bytes]:
        load: dict[str, Any] = {
            "tier": self._outcome.tier,
            "load_ms": self._outcome.load_ms,
            "stall_ms": self._stalls.take_stall_ms(self._name),
        }
        return {**super()._reports(), b"tenora-load": msgspec.json.encode(load)}
