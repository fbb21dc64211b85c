"""Every Prometheus metric of this package. They describe the worker; what is owed is read from the ledger."""

from prometheus_client import Counter, Gauge, Histogram

RECORDS = Counter("tenora_billing_records_total", "Usage events written to the ledger.")
TOKENS = Counter("tenora_billing_tokens_total", "Input and output tokens written to the ledger.")
DUPLICATES = Counter("tenora_billing_duplicates_total", "Usage events that were in the ledger already.")
REFUSED = Counter("tenora_billing_refused_total", "Attempts at an event that could not be recorded.", ["code"])
DEAD_LETTERS = Counter("tenora_billing_dead_letters_total", "Events given up on and set aside. Alert on any.", ["code"])
STALE_PRICES = Counter(
    "tenora_billing_stale_prices_total",
    "Usage events that named prices which were not in force; charged by those in force at admission. Alert on any.",
)
LATE = Counter("tenora_billing_late_total", "Usage events that arrived after their billing period was closed.")
TENANT_FAILURES = Counter(
    "tenora_billing_tenant_failures_total",
    "Tenants whose period could not be closed or adjusted, and who are tried again. Alert on any.",
    ["task"],
)
SURPLUS_PAYMENTS = Counter(
    "tenora_billing_surplus_payments_total",
    "Payments beyond what was due; the surplus is on the customer's balance. Alert on any.",
)
JOBS_FAILED = Counter(
    "tenora_billing_jobs_failed_total", "Runs of a billing job that failed and are tried again.", ["job"]
)
CEILINGS_CHANGED = Counter(
    "tenora_billing_ceilings_changed_total", "Spend ceilings that credit, invoices or payments changed."
)
LOST = Counter("tenora_billing_lost_total", "Entries that left the stream while pending. Alert on any.")
OUTAGES = Counter("tenora_billing_outages_total", "Turns that failed because a dependency did.", ["dependency"])
QUOTAS_REBUILT = Counter(
    "tenora_billing_quotas_rebuilt_total", "Quota counts corrected after Redis was empty or restarted. Alert on any."
)
QUOTA_DRIFTS = Counter(
    "tenora_billing_quota_drifts_total", "Tenants whose quota differed from the ledger, and was mended. Alert on any."
)
QUOTA_DRIFT_TOKENS = Gauge(
    "tenora_billing_quota_drift_tokens", "Tokens by which quotas differed from the ledger at the last look."
)
COST_WINDOWS = Counter(
    "tenora_billing_cost_windows_total",
    "Windows of replicas' time: stored, known already, refused as impossible, or deleted as old. Alert on refused.",
    ["result"],
)
COST_HOURS = Counter("tenora_billing_cost_hours_total", "Hours of replicas whose cost was shared out.")
RESOURCE_HOURS = Counter(
    "tenora_billing_resource_hours_total", "Hours whose storage, pins or cold loads were metered.", ["kind"]
)
COST_HOURS_REFUSED = Counter(
    "tenora_billing_cost_hours_refused_total", "Attempts to share out an hour of a replica without a rate."
)
COST_WINDOWS_LATE = Counter(
    "tenora_billing_cost_windows_late_total",
    "Windows that arrived after their hour was shared out, and whose cost is missing. Alert on any.",
)
COST_WINDOWS_UNSHARED = Counter(
    "tenora_billing_cost_windows_unshared_total",
    "Windows that were deleted as old before their hour was shared out, for want of a rate. Alert on any.",
)
ENGINE_REPORTS_REFUSED = Counter(
    "tenora_billing_engine_reports_refused_total", "Reports of engines' usage that could not be read. Alert on any."
)
RECONCILIATION_UNEXPLAINED = Gauge(
    "tenora_billing_reconciliation_unexplained",
    "Unexplained differences of the last reconciliation, in their own unit. Alert on any value but 0.",
    ["kind", "unit", "replica", "base_model", "hour"],
)
RECONCILIATION_DIFFERENCES = Gauge(
    "tenora_billing_reconciliation_differences", "Unexplained differences of the last reconciliation. Alert on any."
)
LEDGER_DRIFT_NANOS = Gauge(
    "tenora_billing_ledger_drift_nanos",
    "Nanodollars by which transfers differ from sums of usage and from invoices, at the last reconciliation. "
    "Alert on any.",
)
RECONCILED_AT = Gauge(
    "tenora_billing_reconciled_timestamp_seconds",
    "When the last reconciliation ended. Alert when it is older than two hours.",
)
BATCH_SECONDS = Histogram("tenora_billing_batch_seconds", "From reading a batch to its acknowledgement.")
UNREAD = Gauge("tenora_billing_unread_events", "Events in the usage stream that billing has not read.")
PENDING = Gauge("tenora_billing_pending_events", "Events read and not acknowledged.")
DEAD_LETTERS_HELD = Gauge("tenora_billing_dead_letters_held", "Events among the dead letters now.")
