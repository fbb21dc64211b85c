"""The Prometheus metrics of notifications. They describe delivery; what was said is in the database."""

from prometheus_client import Counter, Gauge, Histogram

NOTIFICATIONS = Counter("tenora_billing_notifications_total", "Notifications to tenants, written once each.", ["type"])
DELIVERIES = Counter(
    "tenora_billing_notification_deliveries_total",
    "Attempts to deliver a notification: delivered, retried, or failed for good.",
    ["kind", "result"],
)
DISABLED = Counter("tenora_billing_notification_endpoints_disabled_total", "Endpoints that were disabled.", ["kind"])
QUEUE_FULL = Counter(
    "tenora_billing_notification_queue_full_total", "Deliveries not queued because their endpoint has too many."
)
LATE_RESULTS = Counter(
    "tenora_billing_notification_late_results_total", "Results dropped: the lease had ended. Alert on any."
)
OLDEST_DUE_SECONDS = Gauge(
    "tenora_billing_notification_oldest_due_seconds", "How long the oldest due delivery has waited. Alert above 60."
)
ATTEMPT_SECONDS = Histogram("tenora_billing_notification_attempt_seconds", "One attempt to deliver.", ["kind"])
