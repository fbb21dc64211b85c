"""Measures the KV page-time of each request in vLLM's EngineCore (0.32, ``vllm/v1/core/sched/scheduler.py``), from the
engine's own schedule, and publishes it in the table of KV page-time (``kv_table``).

The schedule lists the requests that took new blocks in a step. Between two such steps a request's pages do not change,
so a step in which no request takes a block costs one pass over that list. Blocks return when vLLM frees a request: at
its end, at an abort and at a preemption. The time in vLLM's queue is never counted.

A request's pages are those of its computed tokens and of the tokens of the running step, rounded up to blocks. A block
of a cached prefix counts for each request that holds it. Fails open: after an error in here the engine goes on without
a measure, and gateways bill by their own.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final

import structlog

from core.kv_area import KvArea, PageTime
from data_plane.engine import engine_ids
from data_plane.engine.kv_table import BUCKETS_MIN, KvTableWriter, Place, now_ms
from data_plane.engine.settings import SharedEngineSettings

_log: Final = structlog.get_logger()
_CHILD: Final = re.compile(r"^\d+_")
_RANDOM_CHARACTERS: Final = 9  # vLLM adds "-" and eight more to each request id (``input_processor.py``)


class _Measured:
    """One request with its sequences. ``place`` is None when the table has none for it."""

    __slots__ = ("area", "id", "place")

    def __init__(self, request_id: str, area: KvArea) -> None:
        self.id = request_id
        self.area = area
        self.place: Place | None = None


class KvMeter:
    """The page-time of every request of one engine. Used in EngineCore's step thread only."""

    def __init__(self, table: KvTableWriter, *, block_tokens: int, ids_are_random: bool = True) -> None:
        self._table = table
        self._block_tokens = block_tokens
        self._random_characters = _RANDOM_CHARACTERS if ids_are_random else 0
        self._requests: dict[str, _Measured] = {}  # running ones, and those that still have a place
        self._holding: dict[str, _Measured] = {}  # by sequence
        self._total = PageTime()

    def record_schedule(self, scheduled: Any, requests: Mapping[str, Any]) -> None:
        """Record the pages that one step's requests hold. ``scheduled`` is vLLM's SchedulerOutput, after which
        ``num_computed_tokens`` of its ``requests`` contains the step.
        """
        cached = scheduled.scheduled_cached_reqs
        grown = [each for each, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks is not None]
        if scheduled.scheduled_new_reqs:
            grown += [new.req_id for new in scheduled.scheduled_new_reqs]
        if not grown:
            return
        at_ms, pages = now_ms(), self._total.pages
        for sequence in grown:
            one = self._holding.get(sequence) or self._begin(sequence)
            if more := one.area.hold(sequence, requests[sequence].num_computed_tokens, at_ms):
                pages += more
                if one.place is not None:
                    self._table.write(one.place)
        self._record_total(pages, at_ms)

    def record_free(self, sequence: str) -> None:
        """Record that a sequence holds no blocks any longer."""
        if (one := self._holding.pop(sequence, None)) is None:
            return  # it was never scheduled, or has been preempted
        at_ms = now_ms()
        freed = one.area.release(sequence, at_ms)
        if one.place is not None:
            self._table.write(one.place)
        elif one.area.pages == 0:
            del self._requests[one.id]
        self._record_total(self._total.pages - freed, at_ms)

    def stop(self) -> None:
        """Measure no longer: nothing is known of any request, and the total stays what it is."""
        self._table.withdraw_records()
        self._record_total(0, now_ms())

    def _begin(self, sequence: str) -> _Measured:
        """A sequence starts, or continues after a preemption. Its request may have had other sequences before."""
        request_id = self._request_of(sequence)
        if (one := self._requests.get(request_id)) is None:
            one = self._requests[request_id] = _Measured(request_id, KvArea(self._block_tokens))
            one.place, before = self._table.claim(request_id, one.area)
            if before is not None:
                del self._requests[before]
        self._holding[sequence] = one
        return one

    def _record_total(self, pages: int, at_ms: int) -> None:
        if pages != self._total.pages:
            self._total.set_pages(pages, at_ms)
            self._table.write_total(self._total)

    def _request_of(self, sequence: str) -> str:
        """The id of a sequence's request. With ``n`` above 1, vLLM numbers the ids of the sequences."""
        child = _CHILD.match(sequence)
        end = len(sequence) - self._random_characters
        return engine_ids.request_of(sequence[child.end() if child else 0 : end])


def attach(scheduler: Any, *, ids_are_random: bool = True) -> None:
    """Extend vLLM's Scheduler class, from which AsyncScheduler inherits: its objects then measure their requests.
    ``ids_are_random``: vLLM adds random characters to the ids of requests.
    """

    def meter_of(self: Any) -> KvMeter | None:
        try:
            return self.tenora_kv_meter  # type: ignore[no-any-return] # vLLM ships no types
        except AttributeError:
            self.tenora_kv_meter = meter = _new_meter(self, ids_are_random=ids_are_random)
            return meter

    # vLLM has no public hook for a return of blocks.
    schedule, free = scheduler.schedule, scheduler._free_request_blocks  # noqa: SLF001 - see above

    def measured_schedule(self: Any, *arguments: Any, **options: Any) -> Any:
        output = schedule(self, *arguments, **options)
        if (meter := meter_of(self)) is not None:
            try:
                meter.record_schedule(output, self.requests)
            except Exception:  # noqa: BLE001 - no error of the measure may end the engine
                _give_up(self)
        return output

    def measured_free(self: Any, request: Any) -> Any:
        freed = free(self, request)
        if (meter := meter_of(self)) is not None:
            try:
                meter.record_free(request.request_id)
            except Exception:  # noqa: BLE001 - no error of the measure may end the engine
                _give_up(self)
        return freed

    scheduler.schedule = measured_schedule
    scheduler._free_request_blocks = measured_free  # noqa: SLF001 - see above


def _new_meter(scheduler: Any, *, ids_are_random: bool) -> KvMeter | None:
    """The meter of a scheduler's first step. The run folder exists: the API server made it before it started
    EngineCore.
    """
    try:
        return KvMeter(
            KvTableWriter(SharedEngineSettings().run_dir, buckets=max(BUCKETS_MIN, scheduler.max_num_running_reqs)),
            block_tokens=scheduler.cache_config.block_size,
            ids_are_random=ids_are_random,
        )
    except Exception:  # noqa: BLE001 - no error of the measure may end the engine, which every request shares
        _log.exception("KV page-time is not measured")
        return None


def _give_up(scheduler: Any) -> None:
    """Measure no longer. A further error must not end the engine either."""
    _log.exception("KV page-time is no longer measured")
    meter, scheduler.tenora_kv_meter = scheduler.tenora_kv_meter, None
    with contextlib.suppress(Exception):
        meter.stop()
