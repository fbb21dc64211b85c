"""What the plugin adds to vLLM's EngineCore (0.32, ``vllm/v1/engine/core.py``): the measure of KV page-time
(``kv_meter``), and an abort that reports how much of each prompt had been computed.

vLLM counts a prompt, in its metrics and in its answers, only with the first token. Without this report, a prompt whose
caller disconnects during the prefill would cost nothing, and would stay in the prefix cache at the cached price.
"""

from typing import Any

from data_plane.engine import kv_meter


def install() -> None:
    """Add the abort to EngineCore, where vLLM's front end can call it by name between two steps, and the measure to its
    scheduler.
    """
    from vllm import envs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    EngineCore.tenora_abort = abort
    kv_meter.attach(Scheduler, ids_are_random=not envs.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION)


# vLLM reads the annotations of the method that a front end calls.
def abort(core: Any, request_ids: list[str]) -> list[tuple[int, int] | None]:
    """Abort requests, by vLLM's internal ids, in ``core``, an EngineCore. Returns for each one how many prompt tokens
    were computed or are being computed in the current step, and how many of these came from the prefix cache. None for
    a request that has ended.
    """
    requests = [core.scheduler.requests.get(each) for each in request_ids]
    running = [None if request is None or request.is_finished() else request for request in requests]
    progress = [None if request is None else _progress(request) for request in running]
    core.abort_requests([request.request_id for request in running if request is not None])
    return progress


def _progress(request: Any) -> tuple[int, int]:
    computed = min(request.num_computed_tokens, request.num_prompt_tokens)
    # vLLM takes the statistics away with the first token. The prompt then counts as computed in full.
    cached = 0 if request.prefill_stats is None else request.prefill_stats.num_cached_tokens
    return computed, min(max(cached, 0), computed)
