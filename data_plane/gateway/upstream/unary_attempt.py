"""An attempt whose answer comes in one piece. Nothing arrives before the whole answer does, so the attempt watches what
the engine counts to notice a replica that stalls, and asks for its own tokens for checkpoints. attempt.py owns
deadlines and aborts.
"""

import asyncio
import json
import re
import time
from typing import Final

import msgspec

from core.errors import Unprocessable
from data_plane.gateway import metrics
from data_plane.gateway.api import embeddings, openai_response
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.openai_request import ID_PREFIXES
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts, reported_number
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import AnswerStream, Attempt, AttemptResult, Dispatch
from data_plane.gateway.upstream.engine_client import EngineClient
from data_plane.gateway.upstream.unary_progress import UnaryProgress, UnaryRun

_TAIL_BYTES: Final = 4096
"""Bytes to keep at the end of an answer that is too large, to find its usage: vLLM 0.32 writes it after all choices."""

_USAGE: Final = re.compile(r'"usage"\s*:\s*(?=\{)')  # inside a string of the answer, its quotes would be escaped


class UnaryAttempt(Attempt):
    """An attempt with an answer in one piece."""

    def __init__(
        self,
        engines: EngineClient,
        limits: GatewaySettings,
        client: Client,
        request: InferenceRequest,
        dispatch: Dispatch,
        replicas: Replicas,
        progress: UnaryProgress,
    ) -> None:
        super().__init__(engines, limits, client, request, dispatch)
        self._replicas = replicas
        self._progress = progress
        self._run = UnaryRun()
        self._raw = bytearray()
        self._too_large = False
        self._answer: openai_response.EngineCompletion | None = None
        self._usage: openai_response.Usage | None = None
        self._load: AdapterLoad | None = None
        self._aborted_report: str | None = None
        self._sequences_report: str | None = None
        self._kv_page_ms: int | None = None

    def _first_deadline(self) -> float:
        return self._deadline  # the first byte comes with the last one

    async def run(self, breakers: CircuitBreakers) -> AttemptResult:
        """Run the attempt, and end it when the engine stops counting tokens."""
        watching = asyncio.create_task(self._watch_engine())
        try:
            request = self.request
            with self._progress.watch(self.replica, request.call.kind, request.id) as self._run:
                return await super().run(breakers)
        finally:
            watching.cancel()

    async def _watch_engine(self) -> None:
        """End the attempt when the engine's heartbeats show no new token for too long. A hung engine keeps its socket
        open and may report itself healthy. Fails open: while heartbeats cannot be read, no engine counts as stalled.
        """
        counted, changed_at = None, time.monotonic()
        while self._replicas.read_at - changed_at < self._limits.engine_stalled_s:
            await asyncio.sleep(self._limits.replica_poll_ms / 1000)
            if (newest := self._replicas.counted_tokens(self.replica)) not in (None, counted):
                counted, changed_at = newest, time.monotonic()
        metrics.STALLED_ANSWERS.inc()
        self._time_out()

    @property
    def load(self) -> AdapterLoad | None:
        return self._load

    @property
    def finish_reason(self) -> str | None:
        return None if self._answer is None else openai_response.finish_reason(self._answer)

    @property
    def aborted_report(self) -> str | None:
        return self._aborted_report

    def counts(self) -> TokenCounts:
        counts = TokenCounts() if self._usage is None else self._counts_of(self._usage)
        counts.kv_page_ms = self._run.kv_page_ms if self._kv_page_ms is None else self._kv_page_ms
        return counts

    def running_counts(self) -> TokenCounts:
        return self._run.counts() if self._usage is None else self.counts()

    async def _exchange(self, response: AnswerStream) -> AttemptResult:
        await self._read_to_end(response)
        counts = self.counts()
        if self._too_large:
            return AttemptResult("done", counts, error=answer_too_large(self._limits.response_max_bytes))
        ending = self._for_caller(counts)
        self._on_first_byte()
        return AttemptResult("done", counts, ending=ending)

    def _decode(self, raw: bytes) -> openai_response.Usage:
        """Keep the answer, and return its usage. Raises msgspec.MsgspecError for anything else."""
        self._answer = openai_response.decode(raw)
        return self._answer.usage

    def _counts_of(self, usage: openai_response.Usage) -> TokenCounts:
        return openai_response.counts(usage, prompts=self.request.prompts, report=self._sequences_report)

    def _for_caller(self, counts: TokenCounts) -> bytes:
        """The answer for the caller. Raises StreamBroken where the engine aborted it."""
        assert self._answer is not None, "it was decoded before"
        if openai_response.is_aborted(self._answer):
            raise StreamBroken("the engine aborted the request")
        request = self.request
        return openai_response.for_caller(
            self._answer,
            counts,
            response_id=ID_PREFIXES[request.call.kind] + request.id,
            shown_name=request.target.shown_name,
            service_tier=request.shown_tier,
        )

    async def _read_to_end(self, response: AnswerStream) -> None:
        self._load = openai_response.load(response.headers.get("x-tenora-load"))
        self._aborted_report = response.headers.get("x-tenora-aborted")
        self._sequences_report = response.headers.get("x-tenora-sequences")
        self._kv_page_ms = reported_number(response.headers.get("x-tenora-kv-page-ms"))
        while data := await response.read_chunk():
            if not self._raw and not data.startswith(b"{"):
                raise StreamBroken("answer is not a JSON object")  # refused at once, not buffered to its end
            self._raw += data
            if self._too_large or len(self._raw) > self._limits.response_max_bytes:
                self._too_large = True
                del self._raw[:-_TAIL_BYTES]
        raw = bytes(self._raw)
        self._usage = usage_at_end(raw) if self._too_large else self._decode(raw)


class EmbeddingAttempt(UnaryAttempt):
    """An attempt for ``/v1/embeddings``. It generates nothing, so its usage is its prompts."""

    _embeddings: embeddings.EngineEmbeddings | None = None

    @property
    def finish_reason(self) -> str | None:
        return None

    def _decode(self, raw: bytes) -> openai_response.Usage:
        self._embeddings = embeddings.decode_embeddings(raw)
        return self._embeddings.usage

    def _counts_of(self, usage: openai_response.Usage) -> TokenCounts:
        return embeddings.embedding_counts(usage, report=self._sequences_report)

    def _for_caller(self, counts: TokenCounts) -> bytes:
        assert self._embeddings is not None, "it was decoded before"
        request = self.request
        return embeddings.embeddings_for_caller(
            self._embeddings, counts, shown_name=request.target.shown_name, service_tier=request.shown_tier
        )


def usage_at_end(tail: bytes) -> openai_response.Usage:
    """The usage of an answer of which only the tail was kept. Raises StreamBroken."""
    text = tail.decode("latin-1")
    try:
        *_, found = _USAGE.finditer(text)
        return msgspec.convert(json.JSONDecoder().raw_decode(text, found.end())[0], openai_response.Usage)
    except (ValueError, msgspec.MsgspecError) as error:
        raise StreamBroken("answer is too large and does not end with its usage") from error


def answer_too_large(bytes_max: int) -> Unprocessable:
    """The caller's fault, not the replica's: the engine generated what the caller asked for, and that is billed."""
    return Unprocessable(
        f"The answer is larger than {bytes_max} bytes; ask for fewer tokens, choices or logprobs, or stream it. "
        "What was generated is billed.",
        code="answer_too_large",
    )
