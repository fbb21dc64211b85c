"""Prometheus metrics of uploads and of the disk cache. Labels are of a closed set: no tenant, adapter or digest."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

INGESTED: Final = Counter("tenora_adapter_uploads_total", "Validated uploads, by outcome.", ["outcome"])
INGEST_SECONDS: Final = Histogram(
    "tenora_adapter_ingest_seconds",
    "Time to validate an upload, from the first download to the report.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
UNPROTECTED_CHILDREN: Final = Counter(
    "tenora_adapter_unprotected_children_total",
    "Validation children without an optional protection (landlock, network, own-user), by the missing protection.",
    ["missing"],
)
CACHE_FETCHES: Final = Counter(
    "tenora_adapter_cache_fetches_total",
    "Adapters requested from the adapter cache, by the tier that had them (disk, store) or failed.",
    ["tier"],
)
CACHE_REFUSALS: Final = Counter(
    "tenora_adapter_cache_refusals_total", "Requests for an adapter that failed, by error code.", ["code"]
)
CACHE_DAMAGED: Final = Counter(
    "tenora_adapter_cache_damaged_total", "Adapters on the disk that no longer matched their digest."
)
CACHE_EVICTIONS: Final = Counter(
    "tenora_adapter_cache_evictions_total", "Adapters removed from the adapter cache, by reason.", ["reason"]
)
CACHE_BYTES: Final = Gauge("tenora_adapter_cache_bytes", "Bytes of adapters in the adapter cache on disk.")
CACHE_OVER_BUDGET: Final = Counter(
    "tenora_adapter_cache_over_budget_total",
    "Downloads that exceeded the cache budget because all other adapters were in use.",
)
DOWNLOAD_SECONDS: Final = Histogram(
    "tenora_adapter_download_seconds",
    "Time to download one adapter from S3 to disk.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
DOWNLOAD_BYTES: Final = Counter("tenora_adapter_download_bytes_total", "Bytes of adapters downloaded from S3.")
DOWNLOAD_RETRIES: Final = Counter(
    "tenora_adapter_download_retries_total", "Repeated calls to S3, by failure.", ["reason"]
)
DOWNLOAD_WAIT_SECONDS: Final = Histogram(
    "tenora_adapter_download_wait_seconds",
    "Time that an adapter download waited for its turn.",
    buckets=(0.01, 0.1, 0.3, 1, 3, 10, 30),
)
DOWNLOADS_WAITING: Final = Gauge(
    "tenora_adapter_downloads_waiting",
    "Waiting adapter downloads, by what they wait for: common slots, or slots of their owner.",
    ["reason"],
)
DOWNLOADS_RUNNING: Final = Gauge(
    "tenora_adapter_downloads_running", "Running adapter downloads, including stalled ones."
)
CIRCUIT_OPEN: Final = Gauge(
    "tenora_adapter_store_circuit_open", "1 while the circuit breaker to S3 is open: only probes pass."
)
