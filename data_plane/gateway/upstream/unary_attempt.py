"""The exchange of an answer in one piece: nothing comes before everything, so the replica's other signs are watched."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Final

import msgspec

from core.errors import Unprocessable
from data_plane.gateway import metrics
from data_plane.gateway.api import openai_response
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.openai_request import ID_PREFIXES
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.scheduling.engine_liveness import EngineLiveness
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import Attempt, Exchange, Relayed
from data_plane.gateway.upstream.connection import EngineResponse
from data_plane.gateway.upstream.engine_client import EngineClient

_TAIL_BYTES: Final = 4096
"""Of an answer that is too large, what is kept to find its usage in: vLLM 0.32 writes it behind all choices."""

_USAGE: Final = re.compile(r'"usage"\s*:\s*(?=\{)')  # in a string of the answer its quotes would be escaped


class WholeExchange(Exchange):
    """An answer in one piece."""

    def __init__(
        self, upstream: EngineClient, limits: GatewaySettings, client: Client, attempt: Attempt, signs: EngineLiveness
    ) -> None:
        super().__init__(upstream, limits, client, attempt)
        self._signs = signs
        self._raw = bytearray()
        self._too_large = False
        self._answer: openai_response.EngineCompletion | None = None
        self._oversized: TokenCounts | None = None  # of an answer that is too large to be passed on
        self._load: AdapterLoad | None = None

    def _first_deadline(self) -> float:
        return self._attempt.deadline  # nothing comes before everything

    async def run(self, on_stood_still: Callable[[], None]) -> Relayed:
        """The exchange, given up when the engine counts no token any more."""
        watching = asyncio.create_task(self._watch_engine())
        try:
            with self._signs.watch(self._attempt.replica):
                return await super().run(on_stood_still)
        finally:
            watching.cancel()

    async def _watch_engine(self) -> None:
        while True:
            await asyncio.sleep(self._signs.poll_s)
            if self._signs.stalled_s(self._attempt.replica) >= self._limits.engine_stalled_s:
                break
        metrics.STALLED_ANSWERS.inc()
        self._time_out()

    @property
    def load(self) -> AdapterLoad | None:
        return self._load

    def counts(self) -> TokenCounts:
        if self._oversized is not None:
            return self._oversized
        return (
            TokenCounts()
            if self._answer is None
            else openai_response.counts(self._answer, sequences=self._attempt.call.n)
        )

    async def _exchange(self, answer: EngineResponse) -> Relayed:
        await self._read_to_end(answer)
        if self._oversized is not None:
            return Relayed("done", self._oversized, error=_too_large(self._limits.response_max_bytes))
        assert self._answer is not None
        if openai_response.is_aborted(self._answer):
            raise StreamBroken("the engine aborted the request")
        counts = self.counts()
        self._attempt.on_first_byte()
        response_id = ID_PREFIXES[self._attempt.call.kind] + self._attempt.request_id
        return Relayed(
            "done",
            counts,
            ending=openai_response.for_caller(
                self._answer,
                counts,
                response_id=response_id,
                shown_name=self._attempt.shown_name,
                tier_shown=self._attempt.call.tier_asked,
            ),
        )

    async def _read_to_end(self, answer: EngineResponse) -> None:
        self._load = openai_response.load(answer.headers.get("x-tenora-load"))
        while data := await answer.some():
            if not self._raw and not data.startswith(b"{"):
                raise StreamBroken("an answer that is no JSON object")  # so that it is not kept until it ends
            self._raw += data
            if self._too_large or len(self._raw) > self._limits.response_max_bytes:
                self._too_large = True
                del self._raw[:-_TAIL_BYTES]
        if self._too_large:
            self._oversized = counts_at_end(bytes(self._raw), sequences=self._attempt.call.n)
        else:
            self._answer = openai_response.decode(bytes(self._raw))


def counts_at_end(tail: bytes, *, sequences: int) -> TokenCounts:
    """Tokens of an answer of which only the end is here, spread evenly over its sequences. Raises StreamBroken."""
    text = tail.decode("latin-1")
    try:
        *_, found = _USAGE.finditer(text)
        usage = msgspec.convert(json.JSONDecoder().raw_decode(text, found.end())[0], openai_response.Usage)
    except (ValueError, msgspec.MsgspecError) as error:
        raise StreamBroken("an answer that is too large and does not end with its usage") from error
    each, more = divmod(usage.completion_tokens, sequences)
    outputs = [each + 1] * more + [each] * (sequences - more)
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens") or 0
    return TokenCounts(usage.prompt_tokens, int(cached), [output for output in outputs if output > 0])


def _too_large(bytes_max: int) -> Unprocessable:
    """The caller's doing and not the replica's: what it asked for has been generated, and is charged."""
    return Unprocessable(
        f"The answer is larger than {bytes_max} bytes; ask for fewer tokens, choices or logprobs, or stream it. "
        "What was generated is billed.",
        code="answer_too_large",
    )
