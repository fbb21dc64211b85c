"""Recording rules: percentiles, KV occupancy and tokens by pool, and how fast the error budgets burn.

The objectives of the platform are here; what is alerted on is not.
"""

from typing import Final

from tenora.observe.alert import RecordingRule

AVAILABILITY: Final = 0.999
"""Share of completions that are not answered with a status of 500 or more."""
FIRST_TOKEN: Final = 0.99
"""Share of streams whose first token comes within ``FIRST_TOKEN_S``."""
FIRST_TOKEN_S: Final = 2.5
BURN_WINDOWS: Final = ("5m", "30m", "1h", "6h")
_IN_TIME: Final = 'service_class!="batch"'
"""Batch requests wait for all others, so they are in no percentile and no objective of time."""
_COMPLETIONS: Final = 'route=~"/v1/(chat/completions|completions|embeddings|messages)"'
_OF_POOL: Final = "* on (job, instance) group_left (pool) tenora_replica_info"


def _phases(quantile: str) -> str:
    rate = "sum by (le, phase, pool) (rate(tenora_gateway_phase_seconds_bucket{" + _IN_TIME + "}[5m]))"
    return f"histogram_quantile({quantile}, {rate})"


def _unavailable(window: str) -> str:
    failed = f'sum(rate(tenora_gateway_requests_total{{{_COMPLETIONS},status=~"5.."}}[{window}])) or vector(0)'
    return f"({failed}) / sum(rate(tenora_gateway_requests_total{{{_COMPLETIONS}}}[{window}]))"


def _late(window: str) -> str:
    early = f'sum(rate(tenora_gateway_phase_seconds_bucket{{{_IN_TIME},phase="ttft",le="{FIRST_TOKEN_S}"}}[{window}]))'
    return f'1 - {early} / sum(rate(tenora_gateway_phase_seconds_count{{{_IN_TIME},phase="ttft"}}[{window}]))'


def _burn(sli: str, errors: str, objective: float, window: str) -> RecordingRule:
    """1 spends the budget exactly in the time that the objective is for; 14.4 spends a month's in two days."""
    return RecordingRule(
        record=f"sli:tenora_error_budget_burn:rate{window}",
        expr=f"({errors}) / (1 - {objective})",
        labels=(("sli", sli),),
    )


RULES: Final = (
    RecordingRule(record="pool:tenora_gateway_phase_seconds:p50_5m", expr=_phases("0.5")),
    RecordingRule(record="pool:tenora_gateway_phase_seconds:p95_5m", expr=_phases("0.95")),
    RecordingRule(
        record="pool:tenora_kv_used:ratio",
        expr=f"1 - sum by (pool) (tenora_replica_free_kv_pages {_OF_POOL})"
        f" / sum by (pool) (tenora_replica_kv_pages {_OF_POOL})",
    ),
    RecordingRule(
        record="pool:tenora_replica_waiting_requests:sum",
        expr=f"sum by (pool) (tenora_replica_waiting_requests {_OF_POOL})",
    ),
    RecordingRule(
        record="pool:tenora_replica_preemptions:rate5m",
        expr=f"sum by (pool) (rate(tenora_replica_preemptions_total[5m]) {_OF_POOL})",
    ),
    RecordingRule(
        record="pool:tenora_replica_tokens:rate1m",
        expr=f"sum by (pool, kind) (rate(tenora_replica_tokens_total[1m]) {_OF_POOL})",
    ),
    *(_burn("availability", _unavailable(window), AVAILABILITY, window) for window in BURN_WINDOWS),
    *(_burn("first_token", _late(window), FIRST_TOKEN, window) for window in BURN_WINDOWS),
)
