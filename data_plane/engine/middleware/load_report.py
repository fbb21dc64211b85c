"""Reports to the caller of one request where its adapter was, how long the request waited for it, and for how long its
load stalled every running request.

The report is a comment at the end of an event stream, and a header of any other answer.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

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


class ReportingSend:
    """An ASGI ``send`` that adds the report, and that sends nothing more once the adapter has failed in a step.

    It holds the start of the answer back until there is a body: a failure before that is still an error with a status.
    """

    def __init__(
        self, send: Send, name: str, outcome: LoadOutcome, stalls: StallReports, on_failure: Callable[[], None]
    ) -> None:
        self._send = send
        self._on_failure = on_failure
        self._name = name
        self._outcome = outcome
        self._stalls = stalls
        self._start: Message | None = None
        self._streams = False
        self._reported = False
        self.started = False
        self.failed = False

    async def __call__(self, message: Message) -> None:
        """Pass on one message of vLLM's answer."""
        if not self.failed and self._stalls.has_failed(self._name):
            self.failed = True
            self._on_failure()
        if self.failed:
            return
        if message["type"] == "http.response.start":
            self._start = message
            self._streams = any(
                key == b"content-type" and value.startswith(b"text/event-stream") for key, value in message["headers"]
            )
            return
        if self._start is not None:
            start, self._start = self._start, None
            if not self._streams:
                start["headers"] = [*start["headers"], (b"x-tenora-load", self._report())]
            self.started = True
            await self._send(start)
        await self._send(self._with_report(message))

    async def end_early(self) -> None:
        """End an answer that has started and whose rest must not be sent."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _with_report(self, message: Message) -> Message:
        content = bytes(message.get("body", b""))
        last = content.startswith(_LAST_EVENT) or not message.get("more_body")
        if not self._streams or self._reported or not last:
            return message
        self._reported = True
        return {**message, "body": b": tenora " + self._report() + b"\n\n" + content}

    def _report(self) -> bytes:
        report: dict[str, Any] = {
            "tier": self._outcome.tier,
            "load_ms": self._outcome.load_ms,
            "stall_ms": self._stalls.take_stall_ms(self._name),
        }
        return msgspec.json.encode(report)
