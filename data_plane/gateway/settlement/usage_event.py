"""Builds the one usage event of a request from the engine's counts, and counts it in the metrics.

The readers of answers collect the counts (``api/sse.py``, ``api/openai_response.py``); the settler sends the event.
"""

import msgspec

from core import kv_pages
from core.contracts.replicas import ReplicaStatus
from core.contracts.request_log import RequestDetails
from core.contracts.usage import YIELDED, Outcome, UsageEvent
from core.kv_area import even_growth_page_ms
from data_plane.gateway import metrics
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts


class RequestRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when a request ran. Times are Unix milliseconds; durations come from the monotonic clock.
    ``first_token_ms`` and ``duration_ms`` start when the request's body had been read; ``on_replica_ms`` is how long
    the replica had the request, and ``generating_ms`` the part of it since the first token, where that was seen.
    ``yielded`` numbers the runs of a batch request that gave way; 0 is the run that answers.
    """

    replica: ReplicaStatus
    outcome: Outcome
    started_at_ms: int
    settled_at_ms: int
    on_replica_ms: int
    generating_ms: int
    first_token_ms: int | None
    duration_ms: int
    load: AdapterLoad | None
    estimated: bool = False
    yielded: int = 0


def usage_event(request: InferenceRequest, run: RequestRun, counts: TokenCounts) -> UsageEvent:
    """The event that is billed. While the cached tokens are unknown, an estimate assumes that the whole prompt was
    cached, since an estimate must never cost more than the request.
    """
    all_cached = run.estimated and not counts.cached_known
    cached = counts.cached_tokens + sum(prefill.cached_tokens for prefill in counts.aborted)
    kv_page_ms, kv_measured = _kv_page_ms(run, counts)
    tenant, served, replica = request.caller.tenant, request.target.adapter, run.replica
    provider = request.target.base.provider
    return UsageEvent(
        request_id=f"{request.id}{YIELDED}{run.yielded}" if run.yielded else request.id,
        tenant_id=tenant.tenant_id,
        key_id=request.caller.key.key_id,
        base_model=request.base_model,
        adapter_id=None if served is None else served.route.adapter_id,
        revision_id=None if served is None else served.revision.id,
        replica_id=replica.id,
        outcome=run.outcome,
        started_at_ms=run.started_at_ms,
        settled_at_ms=run.settled_at_ms,
        input_tokens=counts.input_tokens,
        cached_tokens=counts.input_tokens if all_cached else min(cached, counts.input_tokens),
        output_tokens=counts.output_tokens,
        kv_page_ms=kv_page_ms,
        first_token_ms=run.first_token_ms,
        duration_ms=run.duration_ms,
        adapter_tier=None if run.load is None else run.load.tier,
        adapter_load_ms=0 if run.load is None else run.load.load_ms,
        stall_ms=0 if run.load is None else run.load.stall_ms,
        estimated=run.estimated,
        price_version_id=tenant.price_version_id,
        aborted_prefill_tokens=counts.aborted_prefill_tokens,
        rank_class=request.rank_class,
        kv_measured=kv_measured,
        service_tier=request.service_tier,
        service_class=request.service_class,
        input_gpu_us=request.target.base.gpu_time.input_token_us,
        output_gpu_us=request.target.base.gpu_time.output_token_us,
        token_costs=None if provider is None else provider.costs,
        counted_here=counts.counted_here,
    )


def _kv_page_ms(run: RequestRun, counts: TokenCounts) -> tuple[int, bool]:
    """The request's KV page-milliseconds, and whether its engine measured them. At most what the reservation holds: the
    pages of each sequence's last length for the whole time on the replica.

    Without a report the area is that of sequences that grow evenly since the first token, and what was held before is
    not billed: the gateway cannot tell a prefill from a wait in the engine's queue. An estimate is then 0.
    """
    block_tokens = run.replica.block_tokens
    if counts.kv_page_ms is not None:
        lengths = [prompt + output for prompt, output in counts.sequences]
        lengths += [prefill.computed_tokens for prefill in counts.aborted]
        most = sum(kv_pages.page_ms(length, run.on_replica_ms, block_tokens) for length in lengths)
        return min(counts.kv_page_ms, most), True
    if run.estimated:
        return 0, False
    grown = [even_growth_page_ms(*lengths, run.generating_ms, block_tokens) for lengths in counts.sequences]
    return sum(grown), not (counts.sequences or counts.aborted)


def observe(
    event: UsageEvent, details: RequestDetails, *, expected_prompts: tuple[int, ...], counted: TokenCounts
) -> None:
    """Count the event and its phases in the metrics, and whether the engine and the gateway counted the prompts
    equally.
    """
    metrics.OUTCOMES.labels(event.outcome).inc()
    metrics.TOKENS_OF["input"].inc(event.input_tokens)
    metrics.TOKENS_OF["cached"].inc(event.cached_tokens)
    metrics.TOKENS_OF["output"].inc(event.output_tokens)
    metrics.TOKENS_OF["aborted_prefill"].inc(event.aborted_prefill_tokens)
    first_ms, whole_ms, tier = event.first_token_ms, event.duration_ms, event.adapter_tier
    metrics.PHASE_HISTOGRAMS.observe(
        details.pool or "",
        event,
        (
            details.wait_ms,
            None if tier is None else event.adapter_load_ms,
            details.prefill_ms,
            first_ms,
            details.itl_p95_ms,
            None if first_ms is None else whole_ms - first_ms,
            whole_ms,
        ),
    )
    if not event.kv_measured:
        metrics.KV_UNMEASURED.inc()
    if event.token_costs is not None:  # a provider counts with a tokenizer of its own
        metrics.PROVIDER_ESTIMATES.inc(event.counted_here)
    elif [prompt for prompt, _ in counted.sequences if prompt not in expected_prompts]:
        metrics.PROMPT_COUNT_DIFFERENCES.inc()
