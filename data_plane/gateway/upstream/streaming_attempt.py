"""The exchange of a streamed answer: bytes in, bytes out, tokens counted as they pass."""

from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.openai_request import ID_PREFIXES
from data_plane.gateway.api.sse import DONE, Rewriter, StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.errors import Headers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import Attempt, Exchange, Relayed
from data_plane.gateway.upstream.connection import EngineResponse
from data_plane.gateway.upstream.engine_client import EngineClient

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamExchange(Exchange):
    """A streamed answer."""

    def __init__(self, upstream: EngineClient, limits: GatewaySettings, client: Client, attempt: Attempt) -> None:
        super().__init__(upstream, limits, client, attempt)
        call = attempt.call
        self._rewriter = Rewriter(
            response_id=ID_PREFIXES[call.kind] + attempt.request_id,
            engine_name=attempt.engine_name,
            shown_name=attempt.shown_name,
            usage_shown=call.usage_shown,
            sequences=call.n,
            event_max_bytes=limits.event_max_bytes,
            tier_shown=call.tier_asked,
        )
        self._due = 0.0  # loop time at which the guard is set anew

    def _first_deadline(self) -> float:
        return min(self._loop.time() + self._limits.first_byte_s, self._attempt.deadline)

    @property
    def load(self) -> AdapterLoad | None:
        return self._rewriter.load

    def counts(self) -> TokenCounts:
        return self._rewriter.counts()

    async def _exchange(self, answer: EngineResponse) -> Relayed:
        while not await answer.pour(self._take):
            self._writing = True
            await self._client.drained()
            self._writing = False
        if not self._rewriter.done:
            raise StreamBroken("the stream ended without its end")
        return Relayed("done", self._rewriter.counts(), ending=DONE)

    def _take(self, data: bytes) -> bool:
        """From the engine to the caller, in the moment in which it comes; false where the caller reads too slowly."""
        try:
            out = self._rewriter.feed(data)
        except StreamBroken as broken:
            # What is billed is sent; before the first token the request may still be tried elsewhere.
            if broken.before and (self._client.started or self.counts().outputs):
                self._send(broken.before)
            raise
        self._be_patient()
        return self._send(out) if out else True

    def _send(self, out: bytes) -> bool:
        if self._client.started:
            return self._client.push(out)
        self._attempt.on_first_byte()
        return self._client.begin([*_STREAM_HEADERS, *self._attempt.headers], out)

    def _be_patient(self) -> None:
        """Something came: wait for more for as long again."""
        now, patience_s = self._loop.time(), self._limits.inter_token_s
        if now >= self._due and not self._ending and self._guard is not None:
            # A tenth late rather than at every event: timers cost more than the events do.
            self._guard.reschedule(min(now + 1.1 * patience_s, self._attempt.deadline))
            self._due = now + 0.1 * patience_s

    async def _read_to_end(self, answer: EngineResponse) -> None:
        self._rewriter.aborting = True
        while data := await answer.some():
            self._rewriter.feed(data)
        if not self._rewriter.final:
            raise StreamBroken("the stream ended without a final count")
