"""All Prometheus metrics of the control plane. Metrics fail open: they never reject a request or a job."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Histogram(
    "tenora_control_request_seconds",
    "Duration of requests to the control plane's API, by method and status class.",
    ["method", "status"],
)
REFUSED_CONNECTIONS = Counter(
    "tenora_control_refused_connections_total",
    "Connections that the API's HTTP server closed with an error, by code: headers or a body too large or too late, "
    "too many connections, invalid HTTP.",
    ["code"],
)
REFUSED_REQUESTS = Counter(
    "tenora_control_refused_requests_total",
    "Requests refused because too many ran at once (open: before authentication; tenant; tenants: all of them; admins) "
    "or came in a minute (tenant_rate, address_rate), by that limit.",
    ["limit"],
)
PUBLISHED = Counter("tenora_control_published_changes_total", "Changes published to gateways, by kind.", ["kind"])
PUBLISH_LAG = Histogram(
    "tenora_control_publish_lag_seconds",
    "Time from the commit of a change to its publication to gateways.",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30, 300),
)
ACKNOWLEDGE_SECONDS = Histogram(
    "tenora_control_acknowledge_seconds",
    "Time from the commit of an alias's change until every gateway has acknowledged it, by whether all did in time.",
    ["acknowledged"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30),
)
OUTBOX_AGE = Gauge(
    "tenora_control_outbox_age_seconds",
    "Seconds that the oldest change has waited for publishing, as the web process sees it; 0 without one.",
)
REBUILDS = Counter("tenora_control_snapshot_rebuilds_total", "Rebuilds of the whole snapshot, by reason.", ["reason"])
VERDICTS = Counter(
    "tenora_control_verdicts_total",
    "Revisions accepted or rejected, by status and the first problem's code.",
    ["status", "code"],
)
REFUSED_ANNOUNCEMENTS = Counter(
    "tenora_control_refused_announcements_total",
    "Uploads refused when they were announced, before any file was sent, by code.",
    ["code"],
)
VALIDATION_SECONDS = Histogram(
    "tenora_control_validation_seconds",
    "Time from claiming an upload to its validation verdict.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300),
)
CANARIES = Counter(
    "tenora_control_canaries_total", "Canary runs that decided a revision, by code; empty is a success.", ["code"]
)
CANARY_SECONDS = Histogram(
    "tenora_control_canary_seconds",
    "Time from requesting a canary run to its result.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300),
)
REVOCATION_SECONDS = Histogram(
    "tenora_control_revocation_seconds",
    "Time from a revocation until every live replica has confirmed the removal, by reason.",
    ["reason"],
    buckets=(1, 2, 5, 10, 30, 60, 300, 3600),
)
REMOVED_REVISIONS = Counter(
    "tenora_control_removed_revisions_total",
    "Revisions whose quarantine ended, by whether the stored object was deleted or is shared with another revision.",
    ["stored"],
)
REQUEST_LOG_ROWS = Counter("tenora_control_request_log_rows_total", "Rows of the request log that were stored.")
REQUEST_LOG_LAG = Gauge(
    "tenora_control_request_log_lag_seconds",
    "Age of the oldest entry of the batch of the request log that was stored last.",
)
REQUEST_LOG_LOST = Counter(
    "tenora_control_request_log_lost_total",
    "Entries of the request log that could not be read, or were dropped from Redis before they were stored.",
)
LOOP_FAILURES = Counter("tenora_control_loop_failures_total", "Failed rounds of the worker's loops, by loop.", ["loop"])
LOOP_ALIVE = Gauge(
    "tenora_control_loop_last_step_unixtime", "Time at which a worker loop last finished a round.", ["loop"]
)
WANTED_REPLICAS = Gauge(
    "tenora_fleet_wanted_replicas",
    "Replicas that a pool should have. Only the fleet process that decides exports it; read its max().",
    ["pool"],
)
FLEET_REPLICAS = Gauge(
    "tenora_fleet_replicas",
    "Replicas by pool (empty for none that is known) and state (starting, ready, draining, unhealthy, failed). Only "
    "the fleet process that decides exports it; read its max().",
    ["pool", "state"],
)
MISSING_SIGNALS = Counter(
    "tenora_fleet_missing_signals_total",
    "Rounds in which a pool kept its count because gateways or replicas did not report.",
    ["pool"],
)
BATCH_LINES = Counter(
    "tenora_batch_lines_total",
    "Lines of batches, by what became of them: completed, failed, or repeated (sent again later).",
    ["outcome"],
)
BATCHES_ENDED = Counter("tenora_batches_ended_total", "Batches that have ended, by status.", ["status"])
BATCHES_RISEN = Counter(
    "tenora_batches_risen_total",
    "Batches whose deadline was in danger, so that their lines run in the class interactive.",
)
BATCH_CONCURRENCY = Gauge("tenora_batch_concurrency", "Lines of batches that may run at once now.")
