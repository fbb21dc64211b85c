"""Every Prometheus metric of the gateway. Labels never carry a tenant, a key or any other string of a caller."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from core.contracts.usage import UsageEvent

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PHASES: Final = ("wait", "load", "prefill", "ttft", "itl", "decode", "whole")
_PHASE_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SERIES_MAX: Final = 5_000

REQUESTS = Counter("tenora_gateway_requests", "Answered requests, by route and HTTP status.", ("route", "status"))
REFUSALS = Counter("tenora_gateway_refusals", "Requests answered with an error, by error code.", ("code",))
OUTCOMES = Counter("tenora_gateway_outcomes", "Requests that reached a replica, by how they ended.", ("outcome",))
TOKENS = Counter(
    "tenora_gateway_tokens",
    "Tokens settled, by kind: input, cached, output, or aborted_prefill (part of input).",
    ("kind",),
)
TOKENS_OF: Final = {kind: TOKENS.labels(kind) for kind in ("input", "cached", "output", "aborted_prefill")}
PHASE_SECONDS = Histogram(
    "tenora_gateway_phase_seconds",
    "Time of a request that a replica served, by phase: wait (until it was admitted), load (of its adapter), prefill "
    "(on the replica until the first token, without load), ttft (from the read body to the first token), itl (95th "
    "percentile of the pauses in its stream), decode (after the first token), whole. Only streams have prefill, ttft, "
    "itl and decode. adapter_tier is where the adapter was on arrival; it and rank_class are empty for a base model, "
    "and pool for a replica of none.",
    ("phase", "service_class", "pool", "base_model", "rank_class", "adapter_tier"),
    buckets=_PHASE_SECONDS,
)
ROUTED_REQUESTS = Counter(
    "tenora_gateway_routed_requests",
    "Requests of groups that were admitted, by the group's rule and by why a member got them: weight, session, "
    "classified, tools, schema, length, plan, best (the best member), overflow (the one before had no room in time), "
    "first (of a cascade), escalated (its answer was not kept), bounded (too many were not), "
    "able (the one before cannot serve the request) or only_member.",
    ("rule", "reason"),
)
ESCALATIONS = Counter(
    "tenora_gateway_escalations",
    "Answers of first members of cascades that were replaced, by cause: unsure (improbable tokens), refusal, schema "
    "(not the JSON that was asked for) or failed (no answer).",
    ("cause",),
)
for _cause in ("unsure", "refusal", "schema", "failed"):
    ESCALATIONS.labels(_cause)
RUNNING_REQUESTS = Gauge("tenora_gateway_running_requests", "Requests that hold a reservation now.")
WAITING_REQUESTS = Gauge("tenora_gateway_waiting_requests", "Requests in the wait queue now.")
QUEUE_SECONDS = Histogram(
    "tenora_gateway_queue_seconds", "Time in the wait queue of requests that were then admitted.", buckets=_SECONDS
)
QUEUE_REFUSALS = Counter(
    "tenora_gateway_queue_refusals",
    "Requests refused for overload, by reason: full (the queue is full), tenant (the tenant's share of the queue is "
    "full), late (the queue drains too slowly), pushed_out (replaced by a tenant with fewer waiting requests) or aged "
    "(waited too long).",
    ("reason",),
)
for _reason in ("full", "tenant", "late", "pushed_out", "aged"):
    QUEUE_REFUSALS.labels(_reason)  # Prometheus does not count what a series has when it first appears
QUEUE_YIELDS = Counter(
    "tenora_gateway_queue_yields",
    "Waiting requests that gave up their turn to tenants that wait at another gateway.",
)
RESERVE_SECONDS = Histogram(
    "tenora_gateway_reserve_seconds", "Time to reserve quota and KV pages for one request in Redis.", buckets=_SECONDS
)
REPLICA_FAILURES = Counter(
    "tenora_gateway_replica_failures", "Attempts on a replica that failed before the first byte."
)
ACCESS_REVOKED_REQUESTS = Counter(
    "tenora_gateway_access_revoked_requests",
    "Running requests ended because their key was revoked or their tenant suspended.",
)
RETRIES_REFUSED = Counter(
    "tenora_gateway_retries_refused", "Second attempts not made because the retry budget was used up."
)
PROVIDER_ESTIMATES = Counter(
    "tenora_gateway_provider_estimates",
    "Requests to outside providers that are charged by the gateway's own count, for lack of a usage that can be true.",
)
OPEN_CIRCUITS = Gauge(
    "tenora_gateway_open_circuits", "Replicas that get no requests because their circuit breaker is open."
)
STALLED_ANSWERS = Counter(
    "tenora_gateway_stalled_answers", "Non-streamed answers abandoned because their engine stopped counting tokens."
)
YIELDED_REQUESTS = Counter(
    "tenora_gateway_yielded_requests", "Times that a running batch request gave way to better work and waited again."
)
PROMPT_COUNT_DIFFERENCES = Counter(
    "tenora_gateway_prompt_count_differences",
    "Prompts for which the engine and the gateway counted different numbers of tokens.",
)
KV_UNMEASURED = Counter(
    "tenora_gateway_kv_unmeasured",
    "Requests whose replica never reported their KV page-time, so that the gateway's own figure is billed.",
)
INCOMPLETE_COUNTS = Counter(
    "tenora_gateway_incomplete_counts", "Requests whose replica never reported a final token count."
)
SETTLEMENT_BACKLOG = Gauge("tenora_gateway_settlement_backlog", "Settlements that wait for Redis.")
REPLAY_BUFFER_SETTLEMENTS = Gauge(
    "tenora_gateway_replay_buffer_settlements",
    "Settlements kept for a replay because Redis may still lose them: billing has not recorded them, or only just.",
)
SETTLEMENTS_LOST = Counter(
    "tenora_gateway_settlements_lost", "Settlements dropped because the backlog was full. Each is logged in full."
)
JOURNAL_FAILURES = Counter("tenora_gateway_journal_failures", "Writes to the journal that its disk refused.")
JOURNAL_REPLAYS = Counter("tenora_gateway_journal_replays", "Settlements replayed from the journals of dead processes.")
JOURNAL_EXPIRED_REPLAYS = Counter(
    "tenora_gateway_journal_expired_replays",
    "Settlements replayed after their marker in Redis may have expired: only billing receives them, not quotas.",
)
CHECKPOINTS = Counter("tenora_gateway_checkpoints", "Checkpoints of running requests' usage written to Redis.")
SWEPT_REQUESTS = Counter(
    "tenora_gateway_swept_requests", "Requests of dead gateways that this gateway's sweeper has settled."
)
QUOTA_SLICES = Gauge("tenora_gateway_quota_slices", "Quota slices ready for requests while Redis does not answer.")
QUOTA_SLICE_REQUESTS = Counter(
    "tenora_gateway_quota_slice_requests", "Requests admitted from a quota slice while Redis did not answer."
)
LEASES_MISSING = Counter(
    "tenora_gateway_leases_missing", "Leases that had already expired when the gateway came to renew them."
)
RESERVATIONS_LOST = Counter("tenora_gateway_reservations_lost", "Running requests ended because their lease expired.")
RESERVATIONS_RESTORED = Counter(
    "tenora_gateway_reservations_restored", "Reservations of running requests that Redis had lost and has again."
)
SCHEMA_SECONDS = Histogram("tenora_gateway_schema_seconds", "Time to compile one new JSON Schema.", buckets=_SECONDS)
SCHEMA_COMPILERS_LOST = Counter(
    "tenora_gateway_schema_compilers_lost",
    "Schema compiler processes ended because a schema needed too much time or memory.",
)
SCHEMA_COMPILERS_UNPROTECTED = Counter(
    "tenora_gateway_schema_compilers_unprotected",
    "Schema compilers without an optional protection (landlock, network, own-user), by the missing protection.",
    ["missing"],
)
IDEMPOTENT_REPLAYS = Counter(
    "tenora_gateway_idempotent_replays", "Stored answers returned again for the same Idempotency-Key."
)
IDEMPOTENT_ANSWERS_LOST = Counter(
    "tenora_gateway_idempotent_answers_lost", "Answers that Redis did not store for their Idempotency-Key."
)
LISTING_HINTS = Counter(
    "tenora_gateway_listing_hints", "Prefetch hints sent to replicas after a caller listed its models."
)
REQUEST_LOG_DROPPED = Counter(
    "tenora_gateway_request_log_dropped",
    "Refused requests that are in no row of the request log, because too many of different causes came at once.",
)
TRACES = Counter(
    "tenora_gateway_traces",
    "Traces made, by why the request was chosen: error, slow (it missed a target), caller (a sampled traceparent) or "
    "share.",
    ("reason",),
)
TRACES_DROPPED = Counter(
    "tenora_gateway_traces_dropped",
    "Traces not sent: rate (too many in a second, not made), full (too many wait for the collector) or refused (by the "
    "collector).",
    ("reason",),
)
SNAPSHOT_GENERATION = Gauge("tenora_gateway_snapshot_generation", "Generation of the snapshot in use.")
HEARTBEATS = Counter("tenora_gateway_heartbeats", "Heartbeats of this process written to Redis.")
SNAPSHOTS_FORGED = Counter(
    "tenora_gateway_snapshots_forged",
    "Snapshots and changes refused: not signed by the control plane, or older than one that was seen before.",
)
SNAPSHOT_LOADS = Counter("tenora_gateway_snapshot_loads", "Times that the whole snapshot was read.")


class PhaseHistograms:
    """The series of ``PHASE_SECONDS``. They are kept by their labels, because to find them there costs three times as
    much as to observe. Beyond a thousand pools in every tier, further labels are empty.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, str, str], tuple[Histogram, ...]] = {}

    def observe(self, pool: str, event: UsageEvent, times_ms: tuple[int | None, ...]) -> None:
        """Count one request. ``times_ms`` has its phases in the order of ``PHASE_SECONDS``; None was not measured."""
        rank_class = "" if event.rank_class is None else str(event.rank_class)
        labels: tuple[str, str, str, str, str]
        labels = event.service_class, pool, event.base_model, rank_class, event.adapter_tier or ""
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= _SERIES_MAX:
                labels = "", "", "", "", ""
            series = self._series[labels] = tuple(PHASE_SECONDS.labels(phase, *labels) for phase in _PHASES)
        for histogram, ms in zip(series, times_ms, strict=True):
            if ms is not None:
                histogram.observe(ms / 1000)


PHASE_HISTOGRAMS: Final = PhaseHistograms()
