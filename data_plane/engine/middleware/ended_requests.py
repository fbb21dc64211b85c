"""Counts what vLLM produced for each request that has ended, from vLLM's own state of its sequences.

The counts are added up by tenant and by the hour in which the request's id was made; billing compares them with what
gateways reported. A gateway that died may have settled less than the engine produced, so the final counts of a request
whose connection has closed, or that was aborted, are also reported by id. Counts are taken a moment after the end, when
EngineCore has returned the request's blocks. Fails open: no error in here may end a request.
"""

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from core import clock
from core.contracts.engine_usage import EndedRequest, EngineUsageHour
from core.ids import is_id, ms_of_id
from data_plane.engine.control_protocol import Ended
from data_plane.engine.kv_table import KvTableReader
from data_plane.engine.middleware.aborts import RunningRequest
from data_plane.engine.middleware.asgi import Receive
from data_plane.engine.middleware.vllm_frontend import VllmFrontend

_log: Final = structlog.get_logger()
_HOUR_MS: Final = 3_600_000
_HOURS_KEPT: Final = 6  # far longer than a request may run
_SETTLE_S: Final = 1.0
"""How long after its end a request is counted. A gateway that dies before it has settled closes its connections at
once, so by then the connection tells whether somebody may have missed the end.
"""


@dataclass(slots=True)
class _Request:
    """A request of a tenant."""

    engine_id: str
    request_id: str
    tenant_id: str
    is_closed: Callable[[], bool]
    running: RunningRequest
    aborted: bool = False
    ended_at_ms: int = 0
    due: float = 0.0


class EndedRequests:
    """The counts of one engine. Used on one event loop.

    ``hours_max`` limits the pairs of tenant and hour; beyond it, tenants are counted together under an empty id.
    ``requests_max`` limits the reports by id that wait for the agent; beyond it, the oldest are lost.
    """

    def __init__(self, kv_table: KvTableReader, *, hours_max: int, requests_max: int) -> None:
        self._kv_table = kv_table
        self._hours_max = hours_max
        self._running: dict[str, _Request] = {}
        self._due: deque[_Request] = deque()
        self._hours: dict[tuple[str, int], tuple[int, EngineUsageHour]] = {}  # with the version of their last change
        self._requests: deque[tuple[int, EndedRequest]] = deque(maxlen=requests_max)
        self._version = 0
        self._attached = False

    def attach(self, front_end: VllmFrontend) -> None:
        """Learn of each sequence that vLLM starts. Idempotent."""
        if not self._attached:
            self._attached = True
            front_end.watch_sequences(self._add_sequence)

    @asynccontextmanager
    async def counted(
        self, engine_id: str, request_id: str, tenant_id: str | None, receive: Receive, running: RunningRequest,
        front_end: VllmFrontend,
    ) -> AsyncIterator[None]:  # fmt: skip
        """Count the request, once the block has ended. A request without a tenant is the agent's own."""
        if tenant_id is None or not is_id(request_id, "req"):
            yield
            return
        self.attach(front_end)
        one = self._running[engine_id] = _Request(engine_id, request_id, tenant_id, _closed(receive), running)
        try:
            yield
        finally:
            if self._running.get(engine_id) is one:
                del self._running[engine_id]
            if running.states:
                one.aborted = running.abort is not None or running.aborted_prefills is not None
                await self._end(one, front_end)

    def collect(self, after: int, *, at_once: bool = False) -> Ended:
        """What was counted after this version. With 0, everything that is known. ``at_once`` waits for no request."""
        self._count_due(math.inf if at_once else time.monotonic())
        return Ended(
            version=self._version,
            hours=tuple(hour for version, hour in self._hours.values() if version > after),
            requests=tuple(request for version, request in self._requests if version > after),
        )

    def _add_sequence(self, engine_id: str, state: Any) -> None:
        if (one := self._running.get(engine_id)) is not None:
            one.running.states.append(state)

    async def _end(self, one: _Request, front_end: VllmFrontend) -> None:
        """The answer has ended. A sequence that still runs belongs to a connection that broke: vLLM aborts it too, but
        maybe later, and what it produces until then would be in its counters and not in these.
        """
        if front_end.sequences(one.engine_id):
            one.aborted = True
            try:
                await front_end.abort(frozenset([one.engine_id]))
            except Exception as error:  # noqa: BLE001 - vLLM has its own error types; a dead engine is one of the causes
                _log.warning("a request that has ended was not aborted", request=one.request_id, error=repr(error))
        one.ended_at_ms, one.due = clock.now_ms(), time.monotonic() + _SETTLE_S
        self._due.append(one)
        self._count_due(time.monotonic())

    def _count_due(self, now: float) -> None:
        while self._due and self._due[0].due <= now:
            one = self._due.popleft()
            try:
                self._count(one)
            except Exception:  # noqa: BLE001 - vLLM's states are not ours, and no error here may end a request
                _log.exception("a request that has ended was not counted", request=one.request_id)

    def _count(self, one: _Request) -> None:
        made_ms = ms_of_id(one.request_id)
        assert made_ms is not None, "checked before the request ran"
        counts = one.running.counts()
        ended = EndedRequest(
            request_id=one.request_id,
            tenant_id=one.tenant_id,
            prompt_tokens=sum(each.prompt_tokens for each in counts),
            cached_tokens=sum(each.cached_tokens for each in counts),
            output_tokens=sum(each.output_tokens for each in counts),
            kv_page_ms=self._kv_table.page_ms(one.engine_id),
            ended_at_ms=one.ended_at_ms,
        )
        self._version += 1
        self._add(ended, made_ms // _HOUR_MS * _HOUR_MS)
        if one.aborted or one.is_closed():
            self._requests.append((self._version, ended))

    def _add(self, ended: EndedRequest, hour_ms: int) -> None:
        if (key := (ended.tenant_id, hour_ms)) not in self._hours:
            oldest_ms = hour_ms - _HOURS_KEPT * _HOUR_MS
            for old in [each for each in self._hours if each[1] < oldest_ms]:
                del self._hours[old]
            if len(self._hours) >= self._hours_max:
                key = ("", hour_ms)
        _, known = self._hours.get(key, (0, EngineUsageHour(tenant_id=key[0], hour_ms=hour_ms)))
        self._hours[key] = (
            self._version,
            msgspec.structs.replace(
                known,
                requests=known.requests + 1,
                prompt_tokens=known.prompt_tokens + ended.prompt_tokens,
                cached_tokens=known.cached_tokens + ended.cached_tokens,
                output_tokens=known.output_tokens + ended.output_tokens,
                kv_page_ms=known.kv_page_ms + (ended.kv_page_ms or 0),
                kv_unmeasured_requests=known.kv_unmeasured_requests + (ended.kv_page_ms is None),
            ),
        )


def _closed(receive: Receive) -> Callable[[], bool]:
    """Whether the caller's connection has closed. uvicorn's ``receive`` belongs to an object that knows its transport;
    of any other server nothing is known, and the request is reported as if it had.
    """
    transport = getattr(getattr(receive, "__self__", None), "transport", None)

    def is_closed() -> bool:
        return transport is None or bool(transport.is_closing())

    return is_closed
