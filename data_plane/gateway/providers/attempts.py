"""Attempts of requests at outside providers, which are always asked for a stream: so one that hangs or drips is noticed
for whole answers too. They end as those on engines do, except that a provider knows no abort: its connection is closed,
and without its usage the gateway's estimate is charged.
"""

from functools import cached_property
from typing import Final

from core.contracts.usage import Outcome
from data_plane.gateway.api import openai_response
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.openai_request import ID_PREFIXES
from data_plane.gateway.api.token_counts import TokenCounts
from data_plane.gateway.providers import errors
from data_plane.gateway.providers.client import ProviderClient
from data_plane.gateway.providers.formats import format_of
from data_plane.gateway.providers.meter import ProviderMeter
from data_plane.gateway.providers.whole_answer import WholeAnswer
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import AnswerStream, Attempt, AttemptResult, Dispatch, SentRequest
from data_plane.gateway.upstream.engine_client import EngineClient
from data_plane.gateway.upstream.streaming_attempt import StreamingAttempt
from data_plane.gateway.upstream.unary_attempt import answer_too_large

_EVENT_STREAM: Final = "text/event-stream"
_BYTES_PER_TOKEN_MAX: Final = 4_096
"""Bytes of a stream for each token that was allowed: an event has about 300, and several KiB with log-probabilities."""


class Providers:
    """Makes the attempts at outside providers."""

    def __init__(self, engines: EngineClient, client: ProviderClient, limits: GatewaySettings) -> None:
        self._engines = engines
        self.client = client
        self._limits = limits

    def attempt(self, client: Client, request: InferenceRequest, dispatch: Dispatch) -> Attempt:
        """A new attempt at the provider of a request."""
        kind = StreamAtProvider if request.call.stream else WholeAtProvider
        return kind(self.client, self._engines, self._limits, client, request, dispatch)


class StreamAtProvider(StreamingAttempt):
    """An attempt with a streamed answer. Its provider, its meter and its wire format are the request's own. A provider
    that sends bytes and completes no event counts as silent.
    """

    def __init__(
        self,
        provider_client: ProviderClient,
        engines: EngineClient,
        limits: GatewaySettings,
        client: Client,
        request: InferenceRequest,
        dispatch: Dispatch,
    ) -> None:
        super().__init__(engines, limits, client, request, dispatch)
        provider = request.target.base.provider
        assert provider is not None, "the relay has asked"
        self._provider = provider
        self._meter = ProviderMeter(
            prompt_tokens=provider.without_margin(request.input_tokens), output_max=request.output_tokens
        )
        wire = format_of(provider)(
            self._meter,
            response_id=ID_PREFIXES[request.call.kind] + request.id,
            engine_name=request.engine_name,
            event_max_bytes=limits.event_max_bytes,
            bytes_max=limits.event_max_bytes + request.output_tokens * _BYTES_PER_TOKEN_MAX,
        )
        most = provider.costs.nanos(
            input_tokens=request.input_tokens, cached_tokens=0, output_tokens=request.output_tokens
        )
        self._sent = provider_client.request(provider, wire, dispatch.body, most_nanos=most)

    async def run(self, breakers: CircuitBreakers) -> AttemptResult:
        """Run the attempt within the provider's spending ceiling. Raises as ``Attempt.run``, and LocalShortage where
        the ceiling does not allow it.
        """
        try:
            return await super().run(breakers)
        finally:
            await self._sent.settle(self._cost_nanos())

    def _cost_nanos(self) -> int | None:
        """What the provider says that it did; None where it has not said it."""
        if (usage := self._meter.reported) is None:
            return None
        return self._provider.costs.nanos(
            input_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, output_tokens=usage.output_tokens
        )

    async def _open(self) -> SentRequest:
        return self._sent

    async def _abort(self, engine_request: SentRequest) -> None:
        engine_request.close()

    async def _exchange(self, response: AnswerStream) -> AttemptResult:
        if _EVENT_STREAM not in response.headers.get("content-type", "").lower():
            raise errors.no_answer(self._provider.provider_id, "no event stream")
        return await super()._exchange(response)

    def _counts_with_aborted(self, outcome: Outcome) -> TokenCounts:
        """A caller that hung up pays for the prompt at least, once the provider had it."""
        return self.running_counts() if outcome == "client_gone" else self.counts()

    def _first_deadline(self) -> float:
        return min(self._loop.time() + self._limits.provider_first_event_s, self._deadline)

    def _extend_deadline(self, now: float) -> None:
        if not self._ending and self._guard is not None:
            self._guard.reschedule(min(now + self._limits.provider_between_events_s, self._deadline))

    @property
    def load(self) -> None:
        return None

    @property
    def aborted_report(self) -> None:
        return None

    def counts(self) -> TokenCounts:
        return self._meter.counts()

    def running_counts(self) -> TokenCounts:
        """The counts so far: at least the prompt, once the provider had it."""
        return self._meter.counts_with_prompt() if self._sent.was_sent else self._meter.counts()


class WholeAtProvider(StreamAtProvider):
    """An attempt with an answer in one piece, for which the provider is asked for a stream. Until its end the caller
    has nothing of it, so another member may still answer, and then it costs its tenant nothing.
    """

    _is_charged = False

    @cached_property
    def _whole(self) -> WholeAnswer:
        return WholeAnswer(bytes_max=self._limits.response_max_bytes)

    @property
    def itl_p95_ms(self) -> None:
        return None

    def counts(self) -> TokenCounts:
        """The counts of an answer that has ended, also by the gateway or the caller."""
        return self._meter.counts() if self._meter.finished or self._is_charged else TokenCounts(kv_page_ms=0)

    def _counts_with_aborted(self, outcome: Outcome) -> TokenCounts:
        self._is_charged = not self.stalled
        return super()._counts_with_aborted(outcome)

    def _send(self, out: bytes) -> bool:
        self._whole.add(out)
        return True

    async def _exchange(self, response: AnswerStream) -> AttemptResult:
        result = await super()._exchange(response)
        if self._whole.too_large:
            error = answer_too_large(self._limits.response_max_bytes)
            return AttemptResult(result.outcome, result.counts, error=error)
        request = self.request
        ending = openai_response.for_caller(
            openai_response.decode(self._whole.encoded()),
            result.counts,
            response_id=ID_PREFIXES[request.call.kind] + request.id,
            shown_name=request.target.shown_name,
            service_tier=request.shown_tier,
        )
        self._on_first_byte()
        return AttemptResult(result.outcome, result.counts, ending=ending)
