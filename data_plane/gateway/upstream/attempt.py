"""One attempt of one request on one replica: the race between the engine, the caller and the clock.

When the caller leaves or a time limit passes, the engine is told to abort and is read to its end, so that what is
counted is what it produced. How streamed and whole answers are read is in files of their own.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec
import structlog

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import Outcome
from core.errors import AppError, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.errors import Headers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.connection import EngineResponse
from data_plane.gateway.upstream.engine_client import EngineClient, EngineRequest, ReplicaFailed

_log = structlog.get_logger()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What is relayed, where to, and when the whole request must have ended (loop time). ``adapter`` is the engine's
    name again where that is an adapter's. ``on_open`` is given the exchange, before it begins.
    """

    call: Call
    request_id: str
    tenant_id: str
    engine_name: str
    adapter: str | None
    shown_name: str
    body: bytes
    replica: ReplicaStatus
    headers: Headers
    deadline: float
    on_first_byte: Callable[[], None]
    on_open: Callable[["Exchange"], None]


class Relayed(msgspec.Struct, frozen=True):
    """How an attempt ended and what it used. The response's end is left to be written once the request has settled:
    ``ending`` is its last bytes, or ``error`` says what to tell instead; neither where nobody listens any more.
    """

    outcome: Outcome
    counts: TokenCounts
    ending: bytes = b""
    error: AppError | None = None
    load: AdapterLoad | None = None


class Exchange(ABC):
    """What streamed and whole answers share: the race between the engine, the caller and the clock."""

    def __init__(self, upstream: EngineClient, limits: GatewaySettings, client: Client, attempt: Attempt) -> None:
        self._upstream = upstream
        self._limits = limits
        self._client = client
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._guard: asyncio.Timeout | None = None
        self._asked: EngineRequest | None = None
        self._gone = self._ending = False
        self._writing = False
        self.cut: AppError | None = None  # why it was ended from outside
        self.stood_still = False  # the replica, for longer than one may

    async def run(self, on_stood_still: Callable[[], None]) -> Relayed:
        """The exchange to its end. ``on_stood_still`` is told at once, since a hung engine answers no abort either."""
        attempt = self._attempt
        self._client.watch(self._on_gone)
        try:
            async with asyncio.timeout_at(self._first_deadline()) as self._guard:
                self._asked = await self._upstream.ask(
                    attempt.replica,
                    attempt.call.kind,
                    attempt.request_id,
                    attempt.body,
                    adapter=attempt.adapter,
                    tenant_id=attempt.tenant_id,
                )
                return await self._exchange(await self._asked.answer())
        except TimeoutError:
            if self._gone or self._writing:  # a caller who does not read is as gone as one who hung up
                return await self._end_early("client_gone")
            if self.cut is None and self._loop.time() < attempt.deadline:
                self.stood_still = True
                on_stood_still()
            return await self._end_early("timeout")
        except asyncio.CancelledError:  # the server does so when the time to drain is over, and waits no longer
            self.cut = _stopping()
            return await self._end_early("timeout")
        except (StreamBroken, OSError, msgspec.MsgspecError) as error:
            return self._replica_gone(error)
        finally:
            self._client.watch(None)
            if self._asked is not None:
                self._asked.close()

    def _on_gone(self) -> None:
        self._gone = True
        self._time_out()

    def cut_off(self, error: AppError) -> None:
        """End the exchange now, for a reason that its caller is told."""
        self.cut = error
        self._time_out()

    def _time_out(self) -> None:
        """End the exchange now, as its deadline would."""
        self._ending = True
        if self._guard is not None and not self._guard.expired():
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._guard.reschedule(self._loop.time())

    def _replica_gone(self, error: Exception) -> Relayed:
        counts = self.counts()
        _log.warning("replica went away", replica=self._attempt.replica.id, error=repr(error))
        if not self._client.started and not counts.outputs:
            raise ReplicaFailed("The replica failed before its first token.") from error
        lost = ReplicaFailed("The replica went away before the answer was complete.", retryable=False)
        return Relayed("replica_gone", counts, error=lost)

    async def _end_early(self, outcome: Outcome) -> Relayed:
        """Abort on the engine and read its answer to the end, for the final count."""
        if self._asked is not None:
            await self._abort(self._asked)
        counts = self.counts()
        if outcome == "client_gone":
            return Relayed(outcome, counts)
        if self.cut is not None:
            return Relayed(outcome, counts, error=self.cut)
        if not self._client.started and not counts.outputs and self._loop.time() < self._attempt.deadline:
            raise ReplicaFailed("The replica did not answer in time.", code="replica_timeout")
        late = Unavailable("The answer took too long.", code="generation_timeout", retryable=False)
        return Relayed(outcome, counts, error=late)

    async def _abort(self, asked: EngineRequest) -> None:
        aborting = asyncio.create_task(self._abort_repeatedly())
        try:
            async with asyncio.timeout(self._limits.abort_s):
                await self._read_to_end(await asked.answer())
        except AppError:
            pass  # it never ran
        except asyncio.CancelledError:
            self.cut = _stopping()
        except (TimeoutError, StreamBroken, OSError, msgspec.MsgspecError) as error:
            metrics.INCOMPLETE_COUNTS.inc()
            _log.warning("no final count after an abort", replica=self._attempt.replica.id, error=repr(error))
        finally:
            aborting.cancel()

    async def _abort_repeatedly(self) -> None:
        """Until cancelled: an abort that comes before the engine has the request is lost on it."""
        while True:
            await self._upstream.abort(self._attempt.replica, self._attempt.call.kind, self._attempt.request_id)
            await asyncio.sleep(self._limits.abort_repeat_ms / 1000)

    @abstractmethod
    def _first_deadline(self) -> float:
        """Loop time by which something must have come."""

    @property
    @abstractmethod
    def load(self) -> AdapterLoad | None:
        """What the engine's door has said of the adapter."""

    @abstractmethod
    def counts(self) -> TokenCounts:
        """What the engine has counted so far."""

    @abstractmethod
    async def _exchange(self, answer: EngineResponse) -> Relayed:
        """Relay the answer, all but its end."""

    @abstractmethod
    async def _read_to_end(self, answer: EngineResponse) -> None:
        """Read what is left, for its counts only."""


def _stopping() -> Unavailable:
    return Unavailable("This gateway is stopping; try again.", code="gateway_stopping", retryable=True)
