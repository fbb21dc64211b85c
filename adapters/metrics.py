"""Prometheus metrics of uploads and of the disk cache. Labels are of a closed set: no tenant, adapter or digest."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

INGESTED: Final = Counter("tenora_adapter_uploads_total", "Uploads judged, by outcome.", ["outcome"])
INGEST_SECONDS: Final = Histogram(
    "tenora_adapter_ingest_seconds",
    "From the first download to the verdict.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
UNPROTECTED_CHILDREN: Final = Counter(
    "tenora_adapter_unprotected_children_total",
    "Validation children without an optional protection (landlock, network, own-user), by the one that was missing.",
    ["missing"],
)
CACHE_FETCHES: Final = Counter(
    "tenora_adapter_cache_fetches_total",
    "Adapters asked of the disk cache, by the tier that had them (disk, store), or failed.",
    ["tier"],
)
CACHE_REFUSALS: Final = Counter(
    "tenora_adapter_cache_refusals_total", "Requests for an adapter that got an error instead, by its code.", ["code"]
)
CACHE_DAMAGED: Final = Counter(
    "tenora_adapter_cache_damaged_total", "Adapters on the disk that were not what their digest says any more."
)
CACHE_EVICTIONS: Final = Counter(
    "tenora_adapter_cache_evictions_total", "Adapters removed from the disk cache, by why.", ["reason"]
)
CACHE_BYTES: Final = Gauge("tenora_adapter_cache_bytes", "Bytes of adapters on the disk.")
CACHE_OVER_BUDGET: Final = Counter(
    "tenora_adapter_cache_over_budget_total", "Downloads that exceeded the budget because everything else is in use."
)
DOWNLOAD_SECONDS: Final = Histogram(
    "tenora_adapter_download_seconds", "One adapter from S3 to disk.", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
)
DOWNLOAD_BYTES: Final = Counter("tenora_adapter_download_bytes_total", "Bytes of adapters that came from S3.")
DOWNLOAD_RETRIES: Final = Counter(
    "tenora_adapter_download_retries_total", "Calls to S3 that were made again, by what was wrong.", ["reason"]
)
DOWNLOAD_WAIT_SECONDS: Final = Histogram(
    "tenora_adapter_download_wait_seconds", "Waiting for a turn to download.", buckets=(0.01, 0.1, 0.3, 1, 3, 10, 30)
)
DOWNLOADS_WAITING: Final = Gauge(
    "tenora_adapter_downloads_waiting", "Downloads that wait: for slots, or for their owner's own.", ["reason"]
)
DOWNLOADS_RUNNING: Final = Gauge("tenora_adapter_downloads_running", "Downloads under way, stalled ones among them.")
CIRCUIT_OPEN: Final = Gauge("tenora_adapter_store_circuit_open", "1 while no adapter is asked of S3, but for probes.")
