"""An attempt whose answer is streamed: events pass from the engine to the caller, and their tokens are counted on the
way. attempt.py owns deadlines and aborts.
"""

import math

from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.openai_request import ID_PREFIXES
from data_plane.gateway.api.sse import DONE, Rewriter, StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.errors import Headers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import AnswerStream, Attempt, AttemptResult, Dispatch
from data_plane.gateway.upstream.engine_client import EngineClient

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class TextPauses:
    """The pauses between arrivals of a stream's text, counted by eighths of powers of two of a millisecond: a long
    stream takes as little memory as a short one.
    """

    __slots__ = ("_arrived_at", "_counts")

    def __init__(self) -> None:
        self._arrived_at = 0.0
        self._counts: dict[int, int] = {}

    def arrived(self, now: float) -> None:
        """Text has arrived at this loop time."""
        if self._arrived_at:
            fraction, exponent = math.frexp((now - self._arrived_at) * 1000)
            bucket = 8 * exponent + int(16 * fraction) - 8
            self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._arrived_at = now

    @property
    def p95_ms(self) -> int | None:
        """Their 95th percentile, rounded up to the end of its bucket; None without a pause."""
        left = sum(self._counts.values()) // 20
        for bucket in sorted(self._counts, reverse=True):
            left -= self._counts[bucket]
            if left < 0:
                return math.ceil(math.ldexp(1 + (bucket % 8 + 1) / 8, bucket // 8 - 1))
        return None


class StreamingAttempt(Attempt):
    """An attempt with a streamed answer."""

    def __init__(
        self,
        engines: EngineClient,
        limits: GatewaySettings,
        client: Client,
        request: InferenceRequest,
        dispatch: Dispatch,
    ) -> None:
        super().__init__(engines, limits, client, request, dispatch)
        call = request.call
        self._rewriter = Rewriter(
            response_id=ID_PREFIXES[call.kind] + request.id,
            engine_name=request.engine_name,
            shown_name=request.target.shown_name,
            usage_shown=call.usage_shown,
            sequences=request.sequences,
            event_max_bytes=limits.event_max_bytes,
            service_tier=request.shown_tier,
        )
        self._reschedule_at = 0.0  # loop time
        self._pauses = TextPauses()

    def _first_deadline(self) -> float:
        return min(self._loop.time() + self._limits.first_byte_s, self._deadline)

    @property
    def load(self) -> AdapterLoad | None:
        return self._rewriter.load

    @property
    def finish_reason(self) -> str | None:
        return self._rewriter.finish_reason

    @property
    def itl_p95_ms(self) -> int | None:
        return self._pauses.p95_ms

    @property
    def aborted_report(self) -> bytes | None:
        return self._rewriter.aborted_report

    def counts(self) -> TokenCounts:
        return self._rewriter.counts()

    async def _exchange(self, response: AnswerStream) -> AttemptResult:
        while not await response.forward(self._forward):
            self._writing = True
            await self._client.drained()
            self._writing = False
        if not self._rewriter.done:
            raise StreamBroken("stream ended before [DONE]")
        return AttemptResult("done", self.counts(), ending=DONE)

    def _forward(self, data: bytes) -> bool:
        """Pass bytes from the engine to the caller as they arrive; False where the caller reads too slowly."""
        try:
            out = self._rewriter.feed(data)
        except StreamBroken as broken:
            # What is billed is sent. Before the first token, another replica may still serve the request.
            if broken.before and (self._client.started or self.counts().sequences):
                self._send(broken.before)
            raise
        now = self._loop.time()
        self._extend_deadline(now)
        if not out or (self.gives_way and not self._client.started):
            return True
        self._pauses.arrived(now)
        return self._send(out)

    def _send(self, out: bytes) -> bool:
        if self._client.started:
            return self._client.push(out)
        self._on_first_byte()
        return self._client.begin([*_STREAM_HEADERS, *self._dispatch.headers], out)

    def _extend_deadline(self, now: float) -> None:
        """Bytes arrived: allow ``inter_token_s`` for the next ones."""
        patience_s = self._limits.inter_token_s
        if now >= self._reschedule_at and not self._ending and self._guard is not None:
            # Up to a tenth late instead of exactly at each event: moving a timer costs more than relaying an event.
            self._guard.reschedule(min(now + 1.1 * patience_s, self._deadline))
            self._reschedule_at = now + 0.1 * patience_s

    async def _read_to_end(self, response: AnswerStream) -> None:
        self._rewriter.aborting = True
        while data := await response.read_chunk():
            self._rewriter.feed(data)
        if not self._rewriter.final:
            raise StreamBroken("stream ended without a final count")
