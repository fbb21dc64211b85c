"""From an engine's own counts to the one usage event of a request. How the counts are gathered is relay's business."""

import msgspec

from core import kv_pages
from core.contracts.usage import Outcome, UsageEvent
from data_plane.gateway import metrics
from data_plane.gateway.api.model_catalog import Target
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.state.authenticate import Caller


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when a request ran; times in Unix milliseconds, durations from the monotonic clock. ``first_token_ms``
    and ``duration_ms`` begin when the request had been read; a replica had it for ``on_replica_ms``.
    """

    request_id: str
    replica_id: str
    block_tokens: int
    outcome: Outcome
    started_at_ms: int
    settled_at_ms: int
    on_replica_ms: int
    first_token_ms: int | None
    duration_ms: int
    load: AdapterLoad | None
    estimated: bool = False


def usage_event(caller: Caller, target: Target, run: Run, counts: TokenCounts) -> UsageEvent:
    """What is billed. A sequence's pages are counted at its longest, for as long as the request was on the replica. An
    estimate says that the whole prompt was cached until it is known, since none may cost more than the request.
    """
    all_cached = run.estimated and not counts.cached_known
    return UsageEvent(
        request_id=run.request_id,
        tenant_id=caller.tenant.tenant_id,
        key_id=caller.key.key_id,
        base_model=target.base.id,
        adapter_id=None if target.adapter is None else target.adapter.route.adapter_id,
        revision_id=None if target.adapter is None else target.adapter.revision.id,
        replica_id=run.replica_id,
        outcome=run.outcome,
        started_at_ms=run.started_at_ms,
        settled_at_ms=run.settled_at_ms,
        input_tokens=counts.input_tokens,
        cached_tokens=counts.input_tokens if all_cached else min(counts.cached_tokens, counts.input_tokens),
        output_tokens=counts.output_tokens,
        kv_page_ms=sum(
            kv_pages.page_ms(counts.prompt_tokens + output, run.on_replica_ms, run.block_tokens)
            for output in counts.outputs
        ),
        first_token_ms=run.first_token_ms,
        duration_ms=run.duration_ms,
        adapter_tier=None if run.load is None else run.load.tier,
        adapter_load_ms=0 if run.load is None else run.load.load_ms,
        stall_ms=0 if run.load is None else run.load.stall_ms,
        estimated=run.estimated,
        price_version_id=caller.tenant.price_version_id,
    )


def observe(event: UsageEvent, *, expected_prompt_tokens: int, counted: TokenCounts) -> None:
    """Count the event in the metrics, and whether the engine counted the prompt as we did."""
    metrics.OUTCOMES.labels(event.outcome).inc()
    metrics.TOKENS.labels("input").inc(event.input_tokens)
    metrics.TOKENS.labels("cached").inc(event.cached_tokens)
    metrics.TOKENS.labels("output").inc(event.output_tokens)
    if event.adapter_tier is not None:
        metrics.ADAPTER_REQUESTS.labels(event.adapter_tier).inc()
        if event.first_token_ms is not None:
            metrics.ADAPTER_FIRST_TOKEN_SECONDS.labels(event.adapter_tier).observe(event.first_token_ms / 1000)
    if counted.outputs and counted.prompt_tokens != expected_prompt_tokens:
        metrics.PROMPT_COUNT_DIFFERENCES.inc()
