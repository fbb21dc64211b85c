"""Measures the engine's steps in vLLM's EngineCore (0.32, ``vllm/v1/engine/core.py``): the time of each step, its
computed prompt tokens, decoded tokens, context read and distinct adapters.

vLLM's own ``iteration_details`` lack context and adapters. Their time begins after ``execute_model`` has returned,
which is the end of the step where the model runs in EngineCore's own process (one GPU); and to turn them on logs a line
for each step. So one place measures all. A meter that fails must not end the engine: it logs once and stops counting,
and the replica's busy time is then shown as idle (fails open).
"""

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from core.clock import now_ms
from data_plane.engine.steps import STEPS_FILE, EngineSteps

_log: Final = structlog.get_logger()
_WRITE_INTERVAL_S: Final = 0.25


class StepMeter:
    """Counts in EngineCore's one step thread; a daemon thread writes the totals to disk."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._started_at_ms = now_ms()
        self._busy_ns = 0
        self._counts = [0, 0, 0, 0, 0, 0]
        self._failed = False
        self._writer: threading.Thread | None = None

    def record_step(self, scheduled: Any, requests: Any) -> None:
        """Count the work of one finished step. ``scheduled`` is vLLM's SchedulerOutput, ``requests`` the scheduler's
        requests by id.
        """
        if self._failed or not scheduled.num_scheduled_tokens:
            return
        try:
            work = work_of(scheduled, requests)
        except Exception as error:  # noqa: BLE001 - the engine must serve on without its meter
            self._failed = True
            _log.error("step meter failed; steps are not measured any longer", reason=repr(error))
            return
        self._counts = [before + more for before, more in zip(self._counts, work, strict=True)]

    def record_time(self, busy_ns: int) -> None:
        """Count the time of one call of the engine's step function."""
        self._busy_ns += busy_ns
        if self._writer is None:  # here, since only EngineCore's process runs steps
            self._writer = threading.Thread(target=self._write_forever, name="step-meter", daemon=True)
            self._writer.start()

    def totals(self) -> EngineSteps:
        """The counters as they are now."""
        steps, prefill, decode, context, sequences, adapters = self._counts
        return EngineSteps(
            started_at_ms=self._started_at_ms,
            busy_ns=self._busy_ns,
            steps=steps,
            prefill_tokens=prefill,
            decode_tokens=decode,
            context_tokens=context,
            sequence_steps=sequences,
            adapter_steps=adapters,
        )

    def write(self) -> None:
        """Replace the file atomically. Raises OSError."""
        fresh = self._run_dir / f"{STEPS_FILE}.new"
        fresh.write_bytes(msgspec.json.encode(self.totals()))
        fresh.replace(self._run_dir / STEPS_FILE)

    def _write_forever(self) -> None:
        written_ns = -1
        while True:
            if self._busy_ns != written_ns:
                written_ns = self._busy_ns
                try:
                    self.write()
                except OSError as error:
                    written_ns = -1
                    _log.error("step counters write failed", run_dir=str(self._run_dir), reason=error.strerror)
            time.sleep(_WRITE_INTERVAL_S)


def work_of(scheduled: Any, requests: Any) -> tuple[int, int, int, int, int, int]:
    """The work of one step, in the order of ``EngineSteps``: 1 step, prefill, decode and context tokens, sequences and
    distinct adapters.

    One token of a sequence that has generated before is decoding, and reads all tokens before it. Everything else is
    prefill, also a preempted sequence that is computed again.
    """
    tokens = scheduled.num_scheduled_tokens
    known = scheduled.scheduled_cached_reqs
    decode = context = 0
    rows = zip(known.req_ids, known.num_computed_tokens, known.num_output_tokens, strict=True)
    for request_id, computed, generated in rows:
        if generated and tokens.get(request_id) == 1:
            decode += 1
            context += computed
    adapters = {adapter for each in tokens if (adapter := _adapter_of(requests.get(each))) is not None}
    return 1, sum(tokens.values()) - decode, decode, context, len(tokens), len(adapters)


def _adapter_of(request: Any) -> int | None:
    """None for the base model, and for a request that was aborted during the step."""
    lora = None if request is None else request.lora_request
    return None if lora is None else lora.lora_int_id


def install(run_dir: Path) -> None:
    """Measure the steps of the EngineCore of this process, if it has one."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    meter = StepMeter(run_dir)
    EngineCore.step = _timed(meter, EngineCore.step)
    EngineCore.step_with_batch_queue = _timed(meter, EngineCore.step_with_batch_queue)
    Scheduler.update_from_output = _counted(meter, Scheduler.update_from_output)


def _timed(meter: StepMeter, step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def timed(core: Any) -> Any:
        began = time.monotonic_ns()
        try:
            return step(core)
        finally:
            meter.record_time(time.monotonic_ns() - began)

    return timed


def _counted(meter: StepMeter, update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def counted(scheduler: Any, scheduled: Any, output: Any) -> Any:
        meter.record_step(scheduled, scheduler.requests)
        return update(scheduler, scheduled, output)

    return counted
