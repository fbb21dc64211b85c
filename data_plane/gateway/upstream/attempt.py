"""One attempt of a request on one replica: the race between the engine, the caller and the deadline.

When the caller disconnects or a deadline passes, the attempt aborts the request on the engine and reads the engine's
answer to its end, so that the counts are what the engine produced. streaming_attempt.py and unary_attempt.py read the
two forms of answers.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import AbortedPrefill, Outcome
from core.errors import AppError, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts, reported_prefills
from data_plane.gateway.errors import Headers
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.replica_load import Occupancy
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.engine_client import EngineClient, ReplicaFailed

_log = structlog.get_logger()


class Dispatch(msgspec.Struct, frozen=True):
    """What an attempt adds to its request: the replica with the request's occupancy there, the body for the engine,
    headers for the response, and the loop time by which the whole request must end.
    """

    replica: ReplicaStatus
    occupancy: Occupancy
    body: bytes
    headers: Headers
    deadline: float


class AttemptResult(msgspec.Struct, frozen=True):
    """How an attempt ended and what it used. The end of the response is written after the request has settled:
    ``ending`` is its last bytes, or ``error`` is sent instead; neither where the caller is gone.
    """

    outcome: Outcome
    counts: TokenCounts
    ending: bytes = b""
    error: AppError | None = None
    load: AdapterLoad | None = None


class AnswerStream(Protocol):
    """An answer whose headers have arrived, as ``connection.EngineResponse`` is one."""

    headers: Mapping[str, str]

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; empty at its end."""

    async def forward(self, consume: Callable[[bytes], bool]) -> bool:
        """Pass each piece of the body to ``consume``; False once that pauses."""


class SentRequest(Protocol):
    """A request on its way, as ``engine_client.EngineRequest`` is one."""

    async def response(self) -> AnswerStream:
        """The answer, once its headers have arrived."""

    def close(self) -> None:
        """Release the connection."""


class Attempt(ABC):
    """What streaming and unary attempts share. ``cut`` is why the attempt was ended from outside, ``gives_way`` that it
    was ended for better work, and ``stalled`` that the replica was silent for too long. ``first_byte_at`` is monotonic.
    """

    def __init__(
        self,
        engines: EngineClient,
        limits: GatewaySettings,
        client: Client,
        request: InferenceRequest,
        dispatch: Dispatch,
    ) -> None:
        self.request = request
        self.replica = dispatch.replica
        self.first_byte_at: float | None = None
        self.cut: AppError | None = None
        self.gives_way = False
        self.stalled = False
        self._engines = engines
        self._limits = limits
        self._client = client
        self._dispatch = dispatch
        self._deadline = dispatch.deadline
        self._loop = asyncio.get_running_loop()
        self._guard: asyncio.Timeout | None = None
        self._engine_request: SentRequest | None = None
        self._gone = self._ending = self._refused = False
        self._writing = False

    async def run(self, breakers: CircuitBreakers) -> AttemptResult:
        """Run the attempt to its end. A replica that stalls is reported to ``breakers`` at once, since an engine that
        hangs does not answer an abort either.
        """
        self._client.watch(self._on_gone)
        try:
            async with asyncio.timeout_at(self._first_deadline()) as self._guard:
                self._engine_request = await self._open()
                return await self._exchange(await self._engine_request.response())
        except TimeoutError:
            if self._gone or self._writing:  # a caller that does not read counts as disconnected
                return await self._end_early("client_gone")
            if self.gives_way and self.cut is None:
                return await self._end_early("yielded")
            if self.cut is None and self._loop.time() < self._deadline:
                self.stalled = True
                breakers.failed(self.replica)
            return await self._end_early("timeout")
        except asyncio.CancelledError:  # the server cancels when the time to drain is over, and does not wait longer
            self.cut = _stopping()
            return await self._end_early("timeout")
        except (StreamBroken, OSError, msgspec.MsgspecError) as error:
            return self._replica_gone(error)
        finally:
            self._client.watch(None)
            if self._engine_request is not None:
                self._engine_request.close()

    async def _open(self) -> SentRequest:
        """Send the request. Raises ReplicaFailed or LocalShortage."""
        request = self.request
        return await self._engines.send(
            self.replica,
            request.call.kind,
            request.id,
            self._dispatch.body,
            adapter=request.adapter or None,
            tenant_id=request.tenant_id,
        )

    def cut_off(self, error: AppError) -> None:
        """End the attempt now and send its caller this error."""
        self.cut = error
        self._time_out()

    def give_way(self) -> None:
        """End the attempt now, so that its request waits again. Nothing of its answer has reached the caller."""
        self.gives_way = True
        self._time_out()

    def _on_gone(self) -> None:
        self._gone = True
        self._time_out()

    def _time_out(self) -> None:
        """End the attempt now, as its deadline would."""
        self._ending = True
        if self._guard is not None and not self._guard.expired():
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._guard.reschedule(self._loop.time())

    def _on_first_byte(self) -> None:
        self.first_byte_at = time.monotonic()
        self._dispatch.occupancy.prefilled()

    def _replica_gone(self, error: Exception) -> AttemptResult:
        counts = self.counts()
        _log.warning("replica connection lost", replica=self.replica.id, error=repr(error))
        if not self._client.started and not counts.sequences:
            raise ReplicaFailed("The replica failed before its first token.") from error
        lost = ReplicaFailed("The replica went away before the answer was complete.", retryable=False)
        return AttemptResult("replica_gone", counts, error=lost)

    async def _end_early(self, outcome: Outcome) -> AttemptResult:
        """Abort on the engine and read its answer to the end, for the final count."""
        if self._engine_request is not None:
            await self._abort(self._engine_request)
        if outcome == "yielded" and self.cut is not None:
            outcome = "timeout"
        counts = self._counts_with_aborted(outcome)
        if outcome in ("client_gone", "yielded"):
            return AttemptResult(outcome, counts)
        if self.cut is not None:
            return AttemptResult(outcome, counts, error=self.cut)
        if not self._client.started and not counts.sequences and self._loop.time() < self._deadline:
            raise ReplicaFailed("The replica did not answer in time.", code="replica_timeout")  # costs nothing
        late = Unavailable("The answer took too long.", code="generation_timeout", retryable=False)
        return AttemptResult(outcome, counts, error=late)

    def _counts_with_aborted(self, outcome: Outcome) -> TokenCounts:
        """The engine's counts, and the prefills that it aborted. Without a report, a caller that disconnected pays for
        the whole prompt, and an end that the platform caused costs nothing. A request that the engine refused or never
        got costs nothing.
        """
        counts = self.counts()
        unstarted = Counter(self.request.prompts) - Counter(prompt for prompt, _ in counts.sequences)
        prompts = list(unstarted.elements())[: self.request.sequences - len(counts.sequences)]
        if not prompts or self._engine_request is None or self._refused:
            return counts
        prefills = reported_prefills(self.aborted_report, prompt_tokens=max(prompts))
        if prefills is None and outcome == "client_gone":
            prefills = [AbortedPrefill(prompt, 0) for prompt in prompts]
        counts.aborted = tuple((prefills or [])[: len(prompts)])
        return counts

    async def _abort(self, engine_request: SentRequest) -> None:
        aborting = asyncio.create_task(self._abort_repeatedly())
        try:
            async with asyncio.timeout(self._limits.abort_s):
                await self._read_to_end(await engine_request.response())
        except AppError:
            self._refused = True
        except asyncio.CancelledError:
            self.cut = _stopping()
        except (TimeoutError, StreamBroken, OSError, msgspec.MsgspecError) as error:
            metrics.INCOMPLETE_COUNTS.inc()
            _log.warning("no final count after an abort", replica=self.replica.id, error=repr(error))
        finally:
            aborting.cancel()

    async def _abort_repeatedly(self) -> None:
        """Repeat the abort until cancelled: the engine loses an abort that arrives before its request."""
        while True:
            await self._engines.abort(self.replica, self.request.call.kind, self.request.id)
            await asyncio.sleep(self._limits.abort_repeat_ms / 1000)

    @abstractmethod
    def _first_deadline(self) -> float:
        """Loop time by which the first byte must have arrived."""

    @property
    @abstractmethod
    def load(self) -> AdapterLoad | None:
        """What the engine's middleware has reported about the adapter."""

    @property
    @abstractmethod
    def finish_reason(self) -> str | None:
        """Why generation ended, as the engine says; None before its end."""

    @property
    def itl_p95_ms(self) -> int | None:
        """The 95th percentile of the pauses between arrivals of generated text; None for an answer in one piece."""
        return None

    @property
    @abstractmethod
    def aborted_report(self) -> bytes | str | None:
        """The report of the engine's middleware on sequences that were aborted before their first token."""

    @abstractmethod
    def counts(self) -> TokenCounts:
        """What the engine has counted so far."""

    def running_counts(self) -> TokenCounts:
        """What the engine has counted so far, for a checkpoint. A whole answer has ``counts`` only at its end."""
        return self.counts()

    @abstractmethod
    async def _exchange(self, response: AnswerStream) -> AttemptResult:
        """Relay the answer, except for its end."""

    @abstractmethod
    async def _read_to_end(self, response: AnswerStream) -> None:
        """Read the rest of the answer, for its counts only."""


def _stopping() -> Unavailable:
    return Unavailable("This gateway is stopping; try again.", code="gateway_stopping", retryable=True)
