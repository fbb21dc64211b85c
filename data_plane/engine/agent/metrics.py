"""Every Prometheus metric of a replica's agent. Labels never carry an adapter, a tenant or a caller's string."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

PROBES: Final = Counter(
    "tenora_replica_probes_total",
    "One-token generations by the agent: ok, failed, or busy where only others' tokens came in time.",
    ["result"],
)
READY: Final = Gauge("tenora_replica_ready", "1 once the engine has generated a token, 0 when it drains or fails.")
FREE_PAGES: Final = Gauge("tenora_replica_free_kv_pages", "KV pages that no sequence holds.")
TASK_FAILURES: Final = Counter(
    "tenora_replica_task_failures_total",
    "Failed steps of the agent's side tasks, each repeated after a pause.",
    ["task"],
)

RESIDENT: Final = Gauge("tenora_replica_resident_adapters", "Adapters by the tier they lie in.", ["tier"])
RESIDENCY_CHANGES: Final = Counter("tenora_replica_residency_changes_total", "Published changes of the residency map.")
LOAD_SECONDS: Final = Histogram(
    "tenora_replica_load_seconds", "Time to bring one adapter up, by the tier it came to.", ["to"], buckets=_SECONDS
)
STALL_SECONDS: Final = Histogram(
    "tenora_replica_stall_seconds",
    "The part of loads for which every running request waited, by the tier the adapter came to.",
    ["to"],
    buckets=_SECONDS,
)
LOADS_UNSEEN: Final = Counter("tenora_replica_loads_unseen_total", "Loads that came too fast for the agent to time.")
EVICTIONS: Final = Counter("tenora_replica_evictions_total", "Adapters that left a tier for others.", ["tier"])

PREFETCHES: Final = Counter(
    "tenora_replica_prefetches_total",
    "Adapters brought before they were asked for, by what gave the reason and by where they lay.",
    ["reason", "tier"],
)
PREFETCHES_SKIPPED: Final = Counter(
    "tenora_replica_prefetches_skipped_total",
    "Prefetches not done, by why.",
    ["reason"],
)
PREFETCH_JUDGED: Final = Counter(
    "tenora_replica_prefetch_outcomes_total", "Prefetched adapters that were used in time, and those that were not.",
    ["verdict"],
)  # fmt: skip
PREFETCH_SECONDS: Final = Histogram(
    "tenora_replica_prefetch_seconds", "Time that bringing an adapter ahead took.", buckets=_SECONDS
)
PINNED: Final = Gauge("tenora_replica_pinned_adapters", "Adapters that plans pin to host memory here.")
PINS_DROPPED: Final = Gauge("tenora_replica_pins_dropped", "Pins beyond half of host memory, which are not kept here.")

REVOKED: Final = Gauge("tenora_replica_revoked_adapters", "Adapters the engine has been told to refuse.")
REVOKED_BEYOND: Final = Gauge(
    "tenora_replica_revoked_over_limit_adapters",
    "Revoked adapters beyond TENORA_REVOKED_ADAPTERS_MAX, the oldest ones.",
)
REVOCATIONS: Final = Counter(
    "tenora_replica_revocations_total", "Revocations by what came of an attempt: removed, left, failed.", ["result"]
)
REVOCATION_SECONDS: Final = Histogram(
    "tenora_replica_revocation_seconds", "From a revocation's first sight to its last copy gone here.", buckets=_SECONDS
)

CANARIES: Final = Counter("tenora_replica_canaries_total", "Canary runs by verdict; lost ones gave none.", ["verdict"])
CANARY_SECONDS: Final = Histogram(
    "tenora_replica_canary_seconds", "From taking a canary's job to its verdict.", buckets=_SECONDS
)
