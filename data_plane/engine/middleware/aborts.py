"""Ends requests whose callers have gone, and finds out how much of their prompts had been computed.

vLLM alone would end such a request with a count of zero: it counts a prompt with the first token. EngineCore therefore
aborts first and reports its progress (``engine_core``), and the request's answer carries the report to the gateway. A
request that still waits for its adapter never reaches vLLM. When EngineCore does not answer in time, the request ends
without a report, and the gateway charges the whole prompt.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from core.contracts.usage import AbortedPrefill, SequenceCounts
from core.errors import Unavailable
from data_plane.engine.middleware.vllm_frontend import VllmFrontend

_log = structlog.get_logger()
Result = TypeVar("Result")


class RequestAborted(Unavailable):
    """The gateway aborted the request before vLLM had it. The answer is for logs only: its caller has gone."""

    default_code = "request_aborted"


class RunningRequest:
    """A request between its arrival and the end of its answer.

    ``aborted_prefills`` has an entry for each sequence that was aborted before its first token; it is None until an
    abort has reported. ``states`` are vLLM's states of the sequences of a tenant's request, which stay
    readable after their end.
    """

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.aborted_prefills: list[AbortedPrefill] | None = None
        self.abort: asyncio.Task[None] | None = None
        self._waiting: asyncio.Timeout | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the prefix cache; None before the first token, and with several sequences."""
        if len(self.states) != 1 or self.states[0].is_prefilling:
            return None
        return int(self.states[0].num_cached_tokens)

    def counts(self) -> list[SequenceCounts]:
        """The tokens of each sequence whose prompt has been computed. An embedding has no output."""
        return [
            SequenceCounts(
                state.prompt_len,
                state.num_cached_tokens,
                0 if state.detokenizer is None else state.detokenizer.num_output_tokens(),
            )
            for state in self.states
            if not state.is_prefilling
        ]

    @property
    def embeds(self) -> bool:
        """Whether the request asks for embeddings."""
        return any(state.detokenizer is None for state in self.states)

    async def until_aborted(self, waiting: Awaitable[Result]) -> Result:
        """Wait for what must happen before vLLM gets the request. Raises ``RequestAborted`` after ``stop_waiting``."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await waiting
        except TimeoutError as error:
            if self._waiting is None or not self._waiting.expired():
                raise
            raise RequestAborted("the request was aborted before it started") from error
        finally:
            self._waiting = None

    def stop_waiting(self) -> bool:
        """End ``until_aborted``. False when the request does not wait."""
        if self._waiting is None:
            return False
        if not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())
        return True


class Aborts:
    """Aborts requests by the id that their answers carry. Used on one event loop."""

    def __init__(self, report_timeout_s: float) -> None:
        self._report_timeout_s = report_timeout_s
        self._running: dict[str, RunningRequest] = {}

    @contextmanager
    def track(self, request_id: str) -> Iterator[RunningRequest]:
        """Know the request within the block."""
        running = self._running[request_id] = RunningRequest()
        try:
            yield running
        finally:
            if self._running.get(request_id) is running:
                del self._running[request_id]

    def running(self, request_id: str) -> RunningRequest | None:
        """The request with this id, while it runs."""
        return self._running.get(request_id)

    async def abort(self, request_ids: Iterable[str], front_end: VllmFrontend) -> None:
        """Begin to abort the requests. Their answers end soon after. Callers repeat an abort until then, since vLLM
        ignores an id that it does not know yet.
        """
        others = []
        for request_id in request_ids:
            if (running := self._running.get(request_id)) is None:
                others.append(request_id)
            elif not running.stop_waiting() and (running.abort is None or running.abort.done()):
                running.abort = asyncio.create_task(self._abort(request_id, running, front_end))
        if others:
            await front_end.abort(frozenset(others))

    async def _abort(self, request_id: str, running: RunningRequest, front_end: VllmFrontend) -> None:
        if not (sequences := front_end.sequences(request_id)):
            return
        try:
            async with asyncio.timeout(self._report_timeout_s):
                progress = await front_end.abort_in_core(sequences)
        except Exception as error:  # noqa: BLE001 - vLLM has its own error types; a dead engine is one of the causes
            _log.warning("no report about an aborted prompt", request=request_id, error=repr(error))
            await front_end.abort(frozenset([request_id]))
            return
        # No await from here to the abort: it discards a first token that vLLM's front end has not counted yet.
        prefills = [progress[each] for each in sequences if front_end.is_prefilling(each)]
        running.aborted_prefills = [*(running.aborted_prefills or []), *(each for each in prefills if each is not None)]
        # A sequence that had ended in EngineCore is not aborted: its tokens are on their way.
        await front_end.abort_sequences([each for each in sequences if progress[each] is not None])
