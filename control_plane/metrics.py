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
REBUILDS = Counter(
    "tenora_control_snapshot_rebuilds_total", "Times the whole snapshot was rebuilt, by reason.", ["reason"]
)
VERDICTS = Counter(
    "tenora_control_verdicts_total", "Uploads decided, by status and first problem's code.", ["status", "code"]
)
VALIDATION_SECONDS = Histogram(
    "tenora_control_validation_seconds",
    "From taking an upload up to its verdict.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300),
)
LOOP_FAILURES = Counter("tenora_control_loop_failures_total", "Steps of the worker's loops that raised.", ["loop"])
LOOP_ALIVE = Gauge("tenora_control_loop_last_step_unixtime", "When a loop last finished a step.", ["loop"])
