"""The Prometheus metrics of payments."""

from prometheus_client import Counter, Gauge, Histogram

OPERATIONS = Counter(
    "tenora_billing_payment_operations_total",
    "Operations at Stripe by how an attempt ended: done, failed, postponed, stopped or lost (the lease had ended).",
    ["operation", "result"],
)
OPERATION_SECONDS = Histogram("tenora_billing_payment_operation_seconds", "One attempt of an operation.", ["operation"])
LOOK_UPS = Counter(
    "tenora_billing_payment_look_ups_total", "Searches at Stripe for what a lost answer created.", ["result"]
)
QUEUES_STOPPED = Gauge("tenora_billing_payment_queues_stopped", "Tenants whose queue waits for an admin. Alert on any.")
OLDEST_WAITING_SECONDS = Gauge(
    "tenora_billing_payment_oldest_waiting_seconds", "How long the oldest due operation has waited. Alert above 600."
)
ALARMS = Counter("tenora_billing_payment_alarms_total", "Alarms of payments. Alert on any.", ["kind"])
EVENTS = Counter(
    "tenora_billing_stripe_events_total",
    "Stripe events by result: handled, ignored, retried, failed.",
    ["result"],
)
EVENTS_LISTED = Counter(
    "tenora_billing_stripe_events_listed_total", "Stripe events that no webhook had brought and a list did."
)
SUSPENDED = Counter("tenora_billing_payment_suspensions_total", "Tenants suspended for an unpaid invoice.")
