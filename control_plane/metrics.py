"""Every Prometheus metric of the control plane. Metrics fail open: nothing here can refuse work."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Histogram(
    "tenora_control_request_seconds",
    "Requests to the control plane's API, by method and class of status.",
    ["method", "status"],
)
PUBLISHED = Counter("tenora_control_published_changes_total", "Changes published to gateways, by kind.", ["kind"])
PUBLISH_LAG = Histogram(
    "tenora_control_publish_lag_seconds",
    "From the commit of a change to its publication.",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30, 300),
)
ACKNOWLEDGE_SECONDS = Histogram(
    "tenora_control_acknowledge_seconds",
    "From the commit of an alias's move until every gateway has it, by whether all did in time.",
    ["acknowledged"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30),
)
REBUILDS = Counter(
    "tenora_control_snapshot_rebuilds_total", "Times the whole snapshot was rebuilt, by reason.", ["reason"]
)
VERDICTS = Counter(
    "tenora_control_verdicts_total", "Uploads decided, by status and first problem's code.", ["status", "code"]
)
REFUSED_ANNOUNCEMENTS = Counter(
    "tenora_control_refused_announcements_total", "Uploads refused before a byte was sent, by code.", ["code"]
)
VALIDATION_SECONDS = Histogram(
    "tenora_control_validation_seconds",
    "From taking an upload up to its verdict.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300),
)
CANARIES = Counter("tenora_control_canaries_total", "Canary runs that decided a revision, by code.", ["code"])
CANARY_SECONDS = Histogram(
    "tenora_control_canary_seconds",
    "From asking a pool to run a revision to its result.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300),
)
REVOCATION_SECONDS = Histogram(
    "tenora_control_revocation_seconds",
    "From a revocation to the last live replica's word that nothing is left, by reason.",
    ["reason"],
    buckets=(1, 2, 5, 10, 30, 60, 300, 3600),
)
REMOVED_REVISIONS = Counter(
    "tenora_control_removed_revisions_total",
    "Revisions whose quarantine ended, by what became of the object.",
    ["stored"],
)
LOOP_FAILURES = Counter("tenora_control_loop_failures_total", "Steps of the worker's loops that raised.", ["loop"])
LOOP_ALIVE = Gauge("tenora_control_loop_last_step_unixtime", "When a loop last finished a step.", ["loop"])
