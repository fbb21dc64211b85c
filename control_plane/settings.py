"""The settings of the control plane's two processes, ``web`` and ``worker``, with units and bounds. ``core.settings``
has the settings that other packages share.
"""

from dataclasses import dataclass, field
from typing import Final, get_type_hints

from pydantic import Field

from adapters.settings import StoreSettings, UploadSettings
from billing.costs.settings import CostSettings
from billing.documents.settings import DocumentSettings
from billing.notifications.settings import NotificationSettings, SmtpSettings
from billing.payments.settings import WebhookSettings
from billing.settings import InvoiceSettings
from billing.stripe.settings import StripeSettings
from core.provider_settings import ProviderSettings
from core.settings import (
    CorsSettings,
    Fragment,
    HttpUrl,
    KeySettings,
    PostgresSettings,
    PublicUrlSettings,
    RedisSettings,
    S3Settings,
    TelemetrySettings,
)
from core.snapshot_settings import SnapshotSigningSettings


class WebSettings(Fragment):
    """The REST API: its address and its limits."""

    control_host: str = Field(default="127.0.0.1", description="Address that the control plane's API listens on.")
    control_port: int = Field(
        default=8081, ge=0, le=65535, description="Port that the control plane's API listens on; 0 takes a free port."
    )
    control_body_bytes_max: int = Field(
        default=1 << 20,
        ge=1024,
        description="Largest request body of the control plane's API, except where a base model is registered.",
    )
    control_base_model_bytes_max: int = Field(
        default=32 << 20,
        ge=1024,
        description="Largest request body that registers a base model; it contains the tokenizer.",
    )
    control_headers_max_bytes: int = Field(
        default=32_768, ge=1024, description="Bytes of a request line and headers. The control plane refuses more."
    )
    control_headers_s: float = Field(
        default=10, gt=0, description="How long a client may take to send the request line and the headers."
    )
    control_body_s: float = Field(
        default=30, gt=0, description="How long a client may take to send a request body to the control plane."
    )
    control_connections_max: int = Field(
        default=2000, ge=1, description="Client connections that one web process holds. It refuses more."
    )
    control_connections_per_address_max: int | None = Field(
        default=200,
        ge=1,
        description="Client connections from one address. Behind a reverse proxy all come from its address: leave it "
        "empty there, and set this limit in the proxy.",
    )
    control_keepalive_s: int = Field(
        default=30, ge=1, description="How long an idle client connection of the control plane stays open."
    )
    control_requests_max: int = Field(
        default=200,
        ge=1,
        description="Concurrent requests of tenants in one web process of the control plane; further ones get 503. As "
        "many more may wait for authentication.",
    )
    control_tenant_requests_max: int = Field(
        default=32, ge=1, description="Concurrent requests of one tenant in one web process; further ones get 429."
    )
    control_admin_requests_max: int = Field(
        default=50,
        ge=1,
        description="Concurrent requests of admins in one web process, apart from those of tenants; further ones get "
        "503.",
    )
    control_tenant_requests_per_minute: int = Field(
        default=3000,
        ge=1,
        description="Requests of one tenant per minute in one web process; one minute's may come at once. Further ones "
        "get 429.",
    )
    control_address_requests_per_minute: int | None = Field(
        default=6000,
        ge=1,
        description="The same for all requests from one address. Behind a reverse proxy that does not run on this "
        "machine, all come from its address: leave it empty there, and set this limit in the proxy.",
    )
    control_report_connections_max: int = Field(
        default=4,
        ge=1,
        le=200,
        description="Postgres connections of one web process for usage reports, apart from postgres_pool_max. Further "
        "reports wait for up to 10 s and then get 503.",
    )
    control_drain_s: int = Field(
        default=10,
        ge=0,
        le=300,
        description="How long the control plane's web process lets running requests finish after SIGTERM.",
    )
    upload_files_max: int = Field(default=16, ge=2, le=100, description="Files that one revision may announce.")
    api_keys_max: int = Field(
        default=200, ge=1, description="API keys that one tenant may have, without the revoked ones."
    )
    adapters_unready_max: int = Field(
        default=100,
        ge=1,
        description="Adapters without a ready revision that one tenant may have. They do not count against its plan.",
    )
    uploads_open_max: int = Field(
        default=20,
        ge=1,
        description="Revisions that one tenant may have in the states uploading and validating together.",
    )
    revisions_max: int = Field(default=500, ge=1, description="Revisions that one adapter may have.")
    aliases_max: int = Field(default=20, ge=1, le=1000, description="Aliases that one adapter may have.")
    alias_revisions_max: int = Field(
        default=10, ge=1, le=100, description="Revisions that one alias may split traffic between."
    )
    alias_weights_max: int = Field(
        default=1_000_000, ge=1, le=1 << 31, description="Largest sum of the weights of one alias."
    )
    acknowledge_wait_ms: int = Field(
        default=2000,
        ge=0,
        le=30_000,
        description="How long the answer to a change waits for every gateway to acknowledge it; then it is 202 with "
        "`acknowledged: false`. 0: answers do not wait, and say nothing about gateways.",
    )
    refusals_audited_per_hour_max: int = Field(
        default=500,
        ge=0,
        description="Refused uploads per tenant and hour that are written to the audit trail; further ones are only "
        "counted.",
    )
    usage_days_max: int = Field(
        default=92, ge=1, description="Longest time range, in days, that one usage query may cover."
    )


class PublishingSettings(Fragment):
    """How much of the registry is published to gateways and replicas. Set it to the same value for every process of the
    control plane.
    """

    revisions_published_max: int = Field(
        default=50,
        ge=1,
        le=500,
        description="How many of an adapter's newest ready revisions can be called by id. Revisions with an alias can "
        "always be called.",
    )


class WorkerSettings(Fragment):
    """The worker's loops: how often each runs while the database changes, how much one round handles, and when it gives
    up.
    """

    validation_slots: int = Field(
        default=1, ge=1, le=16, description="Uploads that one worker validates at the same time."
    )
    validation_lease_s: int = Field(
        default=30,
        ge=1,
        description="Lease of a validation. A worker that does not renew it for this long loses the job to another "
        "worker.",
    )
    validation_attempts_max: int = Field(
        default=3,
        ge=1,
        description="Validations of one upload that may be cut short, for example by a killed worker, before it is "
        "rejected.",
    )
    validation_backoff_s: int = Field(
        default=5, ge=1, description="Pause before an upload is validated again after S3 failed."
    )
    canary_required: bool = Field(
        default=True,
        description="Whether a replica must run a revision before it becomes ready. Turn this off only where there are "
        "no replicas.",
    )
    canary_poll_ms: int = Field(
        default=200, ge=10, description="How often the worker requests canary runs and collects their results."
    )
    canary_timeout_s: int = Field(
        default=30, ge=1, description="How long a canary run may stay unanswered before it is requested again."
    )
    canary_attempts_max: int = Field(
        default=3,
        ge=1,
        description="Canary runs that may stay unanswered while a suitable replica is ready, before the revision is "
        "rejected.",
    )
    canary_jobs_per_replica: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Canary runs that may be outstanding in a pool for each of its ready replicas.",
    )
    revocation_poll_ms: int = Field(
        default=500, ge=50, description="How often the worker collects replicas' receipts for revocations."
    )
    revocation_settle_s: int = Field(
        default=5,
        ge=0,
        description="A revocation counts as unloaded after no live replica has been awaited for this long. It must be "
        "longer than "
        "replicas need to report again after Redis lost its data.",
    )
    revocation_quarantine_s: int = Field(
        default=86_400,
        ge=0,
        description="How long the object store keeps the files of a deleted adapter after every replica has unloaded "
        "it.",
    )
    revocation_keep_s: int = Field(
        default=604_800,
        ge=60,
        description="How long the deletion of an adapter stays published to replicas. It must be longer than a replica "
        "may be offline "
        "and keep its disk cache.",
    )
    orphan_age_s: int = Field(
        default=86_400,
        ge=0,
        description="Age at which a stored file that no revision refers to is removed. It must be longer than any "
        "validation takes.",
    )
    spend_ceiling_poll_s: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="How often the worker checks for a new month, whose spend ceilings it then publishes.",
    )
    spend_ceiling_recount_s: int = Field(
        default=3600,
        ge=1,
        description="How often spend ceilings are recomputed within a month, for usage that was recorded late.",
    )
    upload_expires_s: int = Field(
        default=86_400,
        ge=60,
        description="An upload that is not completed this long after it was announced is rejected.",
    )
    control_idempotency_expires_s: int = Field(
        default=86_400,
        ge=60,
        description="How long the control plane stores its response to an Idempotency-Key for replays.",
    )
    cleanup_poll_s: int = Field(
        default=60,
        ge=1,
        description="How often the worker removes expired uploads, expired responses and deleted adapters' files.",
    )
    cleanup_batch_max: int = Field(
        default=100,
        ge=1,
        description="Uploads, stored revisions or stray files that one round of a cleanup loop removes.",
    )
    worker_stop_s: int = Field(
        default=30, ge=1, description="How long the worker lets its loops finish their current round after SIGTERM."
    )


class RequestLogSettings(Fragment):
    """The request log: how the worker stores it, and what queries it."""

    request_log_batch_max: int = Field(
        default=5000, ge=1, le=100_000, description="Entries of the request log that the worker stores in one file."
    )
    request_log_days: int = Field(
        default=30, ge=1, le=3650, description="How many days the request log is kept before today."
    )
    request_log_clickhouse_url: HttpUrl = Field(
        default=None,
        description="ClickHouse server that queries the request log in the bucket, such as "
        "http://user:password@clickhouse:8123. Empty: ClickHouse's engine in the web process, of the extra `log`.",
    )
    request_log_query_s: int = Field(
        default=10, ge=1, le=600, description="How long one query of the request log may take."
    )
    request_log_query_bytes_max: int = Field(
        default=1 << 30, ge=1 << 26, description="Memory that one query of the request log may take."
    )


class BatchSettings(Fragment):
    """Limits of files and batches. Set them to the same values for the web process and the batch process."""

    batch_file_bytes_max: int = Field(
        default=200 << 20, ge=1024, description="Bytes of one file. Files are spooled to TMPDIR while they arrive."
    )
    batch_file_s: float = Field(default=600, gt=0, description="How long a client may take to send a file.")
    batch_lines_max: int = Field(default=50_000, ge=1, le=1_000_000, description="Lines of one batch.")
    batch_line_bytes_max: int = Field(
        default=2 << 20, ge=1024, description="Bytes of one line. At most TENORA_BODY_MAX_BYTES of the gateways."
    )
    batch_short_bytes_max: int = Field(
        default=8 << 20, ge=1024, description="Bytes of the body of `POST /v1/batch`, which holds its requests."
    )
    batch_uploads_max: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Files that one web process receives at once, of one tenant at most half of them. Further ones get "
        "503.",
    )
    batch_results_bytes_max: int = Field(
        default=2 << 30,
        ge=1024,
        description="Bytes of one batch's results, which lie in Postgres until it has ended. A batch with more ends "
        "early.",
    )
    batch_stored_bytes_max: int = Field(
        default=20 << 30, ge=1024, description="Bytes of all files of one tenant, without deleted ones."
    )
    batch_files_days: int = Field(
        default=30, ge=2, le=365, description="After how many days a file is deleted, and the results in it."
    )
    batch_open_max: int = Field(default=100, ge=1, le=10_000, description="Batches of one tenant that have not ended.")
    batch_window_s: int = Field(
        default=86_400, ge=1, description="What the completion window of 24 h lasts. Only tests shorten it."
    )


LOCAL_GATEWAY: Final = "http://127.0.0.1:8080"


class ConsoleSettings(PublicUrlSettings):
    """The console: its address, sessions and sign-ins, those of commands too."""

    gateway_url: HttpUrl = Field(
        default=LOCAL_GATEWAY,
        description="Address of the gateways, to which the console's playground sends its calls. Empty: no playground.",
    )
    gateway_public_url: HttpUrl = Field(
        default=None,
        description="Address at which clients reach the gateways, for the examples that the console shows. Empty: "
        "TENORA_GATEWAY_URL.",
    )
    console_session_idle_s: int = Field(
        default=43_200, ge=60, description="A session of the console ends this long after its last request."
    )
    console_session_s: int = Field(
        default=1_209_600, ge=60, description="A session of the console ends this long after the sign-in."
    )
    console_confirmed_s: int = Field(
        default=900,
        ge=1,
        description="How long after the password was given the console changes keys, members and payments, and "
        "deletes, without asking for it again.",
    )
    sign_in_failures_max: int = Field(
        default=10, ge=1, description="Failed sign-ins of one e-mail address or from one address, in one window."
    )
    sign_in_window_s: int = Field(default=900, ge=1, description="Window in which failed sign-ins are counted.")
    login_codes_max: int = Field(
        default=1000, ge=1, description="Codes of `tenora login` that are kept at once, for ten minutes each."
    )
    login_codes_per_address_max: int | None = Field(
        default=20,
        ge=1,
        description="Codes of `tenora login` from one address that are kept at once. Behind a reverse proxy that does "
        "not run on this machine, all come from its address: leave it empty there.",
    )

    @property
    def gateway_address(self) -> str:
        """The address at which clients reach the gateways, without a slash at its end."""
        return (self.gateway_public_url or self.gateway_url or LOCAL_GATEWAY).rstrip("/")


@dataclass(frozen=True, kw_only=True)
class ControlSettings:
    """All settings that either process reads. A part that is not given comes from the environment."""

    web: WebSettings = field(default_factory=WebSettings)
    cors: CorsSettings = field(default_factory=CorsSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    publishing: PublishingSettings = field(default_factory=PublishingSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    keys: KeySettings = field(default_factory=KeySettings)
    signing: SnapshotSigningSettings = field(default_factory=SnapshotSigningSettings)
    upload: UploadSettings = field(default_factory=UploadSettings)
    notifications: NotificationSettings = field(default_factory=NotificationSettings)
    smtp: SmtpSettings = field(default_factory=SmtpSettings)
    providers: ProviderSettings = field(default_factory=ProviderSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    costs: CostSettings = field(default_factory=CostSettings)
    request_log: RequestLogSettings = field(default_factory=RequestLogSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    invoices: InvoiceSettings = field(default_factory=InvoiceSettings)
    documents: DocumentSettings = field(default_factory=DocumentSettings)
    stripe: StripeSettings = field(default_factory=StripeSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)


CONTROL_PARTS: Final = tuple(get_type_hints(ControlSettings).values())
"""The settings classes that ``ControlSettings`` is made of."""
