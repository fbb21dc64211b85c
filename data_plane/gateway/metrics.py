"""Every Prometheus metric of the gateway. Labels never carry a tenant, a key or a caller's string."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

requests = Counter("tenora_gateway_requests", "Answered requests.", ("route", "status"))
refusals = Counter("tenora_gateway_refusals", "Requests answered with an error, by its code.", ("code",))
outcomes = Counter("tenora_gateway_outcomes", "How relayed requests ended.", ("outcome",))
tokens = Counter("tenora_gateway_tokens", "Tokens settled.", ("kind",))
running = Gauge("tenora_gateway_running_requests", "Requests that hold a reservation now.")
waiting = Gauge("tenora_gateway_waiting_requests", "Requests that wait for room on a replica now.")
queue_seconds = Histogram("tenora_gateway_queue_seconds", "How long requests waited that got room.", buckets=_SECONDS)
queue_refusals = Counter(
    "tenora_gateway_queue_refusals",
    "Requests refused for overload: full, tenant (its share of the queue), late (it empties too slowly), pushed_out "
    "(for a tenant with less there) or aged.",
    ("reason",),
)
gave_way = Counter(
    "tenora_gateway_gave_way", "Waiting requests that left their turn to tenants who wait behind another gateway."
)
reserve_seconds = Histogram("tenora_gateway_reserve_seconds", "Time of one reservation.", buckets=_SECONDS)
first_byte_seconds = Histogram(
    "tenora_gateway_first_byte_seconds", "Arrival of a request to its first byte out.", buckets=_SECONDS
)
request_seconds = Histogram("tenora_gateway_request_seconds", "Arrival of a request to its end.", buckets=_SECONDS)
replica_failures = Counter("tenora_gateway_replica_failures", "Attempts that failed before the first byte.")
cut_off = Counter("tenora_gateway_cut_off", "Requests ended for a revoked key or a suspended tenant.")
retries_refused = Counter("tenora_gateway_retries_refused", "Second attempts not made, for lack of budget.")
breakers_open = Gauge("tenora_gateway_breakers_open", "Replicas that are left alone after failures in a row.")
replicas_silent = Counter(
    "tenora_gateway_replicas_silent", "Whole answers given up because their engine counted no token any more."
)
prompt_count_differences = Counter(
    "tenora_gateway_prompt_count_differences", "Prompts the engine counted otherwise than we did."
)
incomplete_counts = Counter("tenora_gateway_incomplete_counts", "Requests whose replica never reported a final count.")
settlement_backlog = Gauge("tenora_gateway_settlement_backlog", "Settlements waiting for Redis.")
settlements_kept = Gauge(
    "tenora_gateway_settlements_kept", "Settlements that Redis has and billing has not recorded, or not long ago."
)
settlements_lost = Counter(
    "tenora_gateway_settlements_lost", "Settlements dropped at the backlog's bound; logged in full."
)
journal_failures = Counter("tenora_gateway_journal_failures", "Writes that the journal's disk did not take.")
journal_replays = Counter("tenora_gateway_journal_replays", "Settlements taken over from dead processes.")
journal_stale = Counter(
    "tenora_gateway_journal_stale", "Settlements repeated so late that billing alone was told of them."
)
checkpoints = Counter("tenora_gateway_checkpoints", "Checkpoints of running usage written.")
orphans = Counter("tenora_gateway_orphans", "Requests swept whose gateway was gone.")
slices_spent = Counter("tenora_gateway_slices_spent", "Requests admitted by a share of quota taken beforehand.")
leases_missing = Counter("tenora_gateway_leases_missing", "Leases that had run out when they were to be renewed.")
holds_restored = Counter("tenora_gateway_holds_restored", "Running requests whose holds Redis had lost, and has again.")
adapter_requests = Counter(
    "tenora_gateway_adapter_requests", "Requests of adapters, by the tier in which the adapter lay.", ("tier",)
)
adapter_first_token_seconds = Histogram(
    "tenora_gateway_adapter_first_token_seconds",
    "From an adapter's request to its first token, by the tier in which the adapter lay.",
    ("tier",),
    buckets=_SECONDS,
)
schema_seconds = Histogram("tenora_gateway_schema_seconds", "Time of compiling one new schema.", buckets=_SECONDS)
schema_compilers_lost = Counter(
    "tenora_gateway_schema_compilers_lost", "Schema compilers ended because a schema took too much."
)
idempotent_replays = Counter("tenora_gateway_idempotent_replays", "Answers given again for an Idempotency-Key.")
idempotent_answers_lost = Counter(
    "tenora_gateway_idempotent_answers_lost", "Answers that Redis did not keep for their Idempotency-Key."
)
listing_hints = Counter("tenora_gateway_listing_hints", "Adapters hinted to replicas after a listing of models.")
snapshot_generation = Gauge("tenora_gateway_snapshot_generation", "Generation of the snapshot in use.")
beats = Counter("tenora_gateway_beats", "Heartbeats written.")
snapshot_loads = Counter("tenora_gateway_snapshot_loads", "Times the whole snapshot was read.")
