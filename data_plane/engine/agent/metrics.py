"""Every Prometheus metric of a replica's agent. Labels never carry an adapter, a tenant or a caller's string."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

PROBES: Final = Counter(
    "tenora_replica_probes_total",
    "One-token probes by the agent: ok, failed, or busy (timed out while other requests' tokens were counted).",
    ["result"],
)
READY: Final = Gauge(
    "tenora_replica_ready", "1 when the engine serves requests, 0 while it starts, drains or has failed."
)
FREE_PAGES: Final = Gauge("tenora_replica_free_kv_pages", "KV pages that no sequence uses.")
PAGES: Final = Gauge("tenora_replica_kv_pages", "KV pages of the replica; 0 until its engine has started.")
INFO: Final = Gauge(
    "tenora_replica_info",
    "1, with the replica's pool (empty for none), base model and rank class, for joins with its other series.",
    ["pool", "base_model", "rank_class"],
)
BATCH_REQUESTS_MAX: Final = Gauge(
    "tenora_replica_batch_requests_max", "Requests that may run in the engine beside batch when other classes use it."
)
RUNNING: Final = Gauge("tenora_replica_running_requests", "Requests that run in the engine.")
WAITING: Final = Gauge("tenora_replica_waiting_requests", "Requests that wait in the engine's own queue.")
ENGINE_TOKENS: Final = Counter(
    "tenora_replica_tokens_total",
    "Tokens that the engine has counted while the agent looked, by kind: prompt or generated.",
    ["kind"],
)
PREEMPTIONS: Final = Counter(
    "tenora_replica_preemptions_total", "Requests that the engine has set back because its KV cache was full."
)
COST_WINDOWS: Final = Counter(
    "tenora_replica_cost_windows_total",
    "Windows of the replica's time and steps: sent to billing, or lost because Redis did not answer for too long.",
    ["result"],
)
TASK_FAILURES: Final = Counter(
    "tenora_replica_task_failures_total",
    "Failed runs of the agent's background tasks, each retried after a pause.",
    ["task"],
)

RESIDENT: Final = Gauge("tenora_replica_resident_adapters", "Resident adapters by tier.", ["tier"])
RESIDENCY_CHANGES: Final = Counter("tenora_replica_residency_changes_total", "Published changes of the residency.")
LOAD_SECONDS: Final = Histogram(
    "tenora_replica_load_seconds", "Time to load one adapter, by the tier it was loaded into.", ["to"], buckets=_SECONDS
)
STALL_SECONDS: Final = Histogram(
    "tenora_replica_stall_seconds",
    "Time of a load for which every running request waited, by the tier it was loaded into.",
    ["to"],
    buckets=_SECONDS,
)
LOADS_UNSEEN: Final = Counter(
    "tenora_replica_loads_unseen_total",
    "Loads that left the residency table before the agent could read their duration.",
)
EVICTIONS: Final = Counter(
    "tenora_replica_evictions_total", "Adapters evicted from a tier to make room for others.", ["tier"]
)

PREFETCHES: Final = Counter(
    "tenora_replica_prefetches_total",
    "Prefetched adapters, by the reason of the prefetch and the tier in which they were found.",
    ["reason", "tier"],
)
PREFETCHES_SKIPPED: Final = Counter(
    "tenora_replica_prefetches_skipped_total",
    "Prefetches not done, by reason.",
    ["reason"],
)
PREFETCH_OUTCOMES: Final = Counter(
    "tenora_replica_prefetch_outcomes_total",
    "Prefetched adapters that a request used in time (useful) or did not (wasted).",
    ["outcome"],
)  # fmt: skip
PREFETCH_SECONDS: Final = Histogram("tenora_replica_prefetch_seconds", "Duration of one prefetch.", buckets=_SECONDS)
PINNED: Final = Gauge("tenora_replica_pinned_adapters", "Adapters that plans pin to host memory on this replica.")
PINS_DROPPED: Final = Gauge("tenora_replica_pins_dropped", "Pins beyond half of host memory, which are ignored.")

REVOKED: Final = Gauge("tenora_replica_revoked_adapters", "Revoked adapters that the engine refuses.")
REVOKED_BEYOND: Final = Gauge(
    "tenora_replica_revoked_over_limit_adapters",
    "Revoked adapters beyond TENORA_REVOKED_ADAPTERS_MAX, which the engine does not refuse: the oldest ones.",
)
REVOCATIONS: Final = Counter(
    "tenora_replica_revocations_total",
    "Attempts to remove a revoked adapter, by result: removed, left (copies remain), failed.",
    ["result"],
)
REVOCATION_SECONDS: Final = Histogram(
    "tenora_replica_revocation_seconds",
    "Time from a revocation's arrival to the removal of the last copy on this replica.",
    buckets=_SECONDS,
)

CANARIES: Final = Counter("tenora_replica_canaries_total", "Canary runs by verdict; a lost run gave none.", ["verdict"])
CANARY_SECONDS: Final = Histogram(
    "tenora_replica_canary_seconds", "Time from the start of a canary job to its verdict.", buckets=_SECONDS
)
