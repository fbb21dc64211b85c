"""The settings of the control plane's two processes, each with its unit and bounds. Shared ones are in ``core``."""

from dataclasses import dataclass, field

from pydantic import Field

from adapters.settings import StoreSettings, UploadSettings
from core.settings import (
    CorsSettings,
    Fragment,
    KeySettings,
    PostgresSettings,
    RedisSettings,
    S3Settings,
    TelemetrySettings,
)


class WebSettings(Fragment):
    """The API: where it listens and what it bounds."""

    control_host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    control_port: int = Field(default=8081, ge=0, le=65535, description="Port the API listens on; 0 takes a free one.")
    control_body_bytes_max: int = Field(default=1 << 20, ge=1024, description="Largest request body.")
    control_base_model_bytes_max: int = Field(
        default=32 << 20, ge=1024, description="Largest body that registers a base model; its tokenizer is in it."
    )
    control_requests_max: int = Field(default=200, ge=1, description="Requests in work at once; more are answered 503.")
    control_drain_s: int = Field(default=10, ge=0, le=300, description="How long SIGTERM waits for requests in work.")
    upload_files_max: int = Field(default=16, ge=2, le=100, description="Files one revision may announce.")
    uploads_open_max: int = Field(default=20, ge=1, description="Revisions a tenant may have uploading or validating.")
    revisions_max: int = Field(default=500, ge=1, description="Revisions one adapter may have.")
    aliases_max: int = Field(default=20, ge=1, le=1000, description="Aliases one adapter may have.")
    alias_revisions_max: int = Field(default=10, ge=1, le=100, description="Revisions one alias may share out to.")
    alias_weights_max: int = Field(
        default=1_000_000, ge=1, le=1 << 31, description="What the weights of one alias may come to together."
    )
    acknowledge_wait_ms: int = Field(
        default=2000, ge=0, le=30_000, description="How long an alias's move is waited for at every gateway."
    )
    acknowledge_poll_ms: int = Field(default=20, ge=5, le=1000, description="How often that is looked at.")
    refusals_audited_per_hour_max: int = Field(
        default=500, ge=0, description="Refused announcements of one tenant that the audit trail keeps an hour."
    )
    usage_days_max: int = Field(default=92, ge=1, description="Longest span one usage query may cover.")


class PublishingSettings(Fragment):
    """What of the registry goes to gateways and replicas; the same for every process of the control plane."""

    revisions_published_max: int = Field(
        default=50,
        ge=1,
        le=500,
        description="Newest ready revisions of an adapter that can be called by id; every aliased one can be besides.",
    )


class WorkerSettings(Fragment):
    """The worker's loops: how often they look, how much they take, when they give up."""

    relay_poll_ms: int = Field(default=100, ge=10, le=1000, description="How often unpublished changes are looked for.")
    relay_batch_max: int = Field(default=500, ge=1, le=5000, description="Changes published in one go.")
    validation_slots: int = Field(default=1, ge=1, le=16, description="Uploads validated at the same time.")
    validation_poll_ms: int = Field(default=250, ge=10, description="How often waiting uploads are looked for.")
    validation_lease_s: int = Field(
        default=30, ge=1, description="A worker not heard of for this long has lost its job."
    )
    validation_attempts_max: int = Field(
        default=3, ge=1, description="Workers an upload may cost before it is rejected."
    )
    validation_backoff_s: int = Field(
        default=5, ge=1, description="Pause before an upload is tried again when S3 failed."
    )
    canary_required: bool = Field(
        default=True, description="Whether a replica must run a revision before it is ready; off only without replicas."
    )
    canary_poll_ms: int = Field(default=200, ge=10, description="How often canary runs are asked for and collected.")
    canary_batch_max: int = Field(default=50, ge=1, le=1000, description="Canary results and waiting revisions a step.")
    canary_timeout_s: int = Field(default=30, ge=1, description="A canary run not answered by then is asked for again.")
    canary_attempts_max: int = Field(
        default=3,
        ge=1,
        description="Unanswered canary runs, with a fitting replica ready, before a revision is rejected.",
    )
    canary_jobs_per_replica: int = Field(
        default=2, ge=1, le=100, description="Canary runs asked of a pool at once, for each of its ready replicas."
    )
    revocation_poll_ms: int = Field(default=500, ge=50, description="How often replicas' receipts are collected.")
    revocation_batch_max: int = Field(default=200, ge=1, le=5000, description="Revocations looked at in one go.")
    revocation_settle_s: int = Field(
        default=5,
        ge=0,
        description="No replica must have been awaited for this long; longer than statuses take to return.",
    )
    revocation_quarantine_s: int = Field(
        default=86_400, ge=0, description="How long a deleted adapter's stored files stay after no replica has it."
    )
    revocation_keep_s: int = Field(
        default=604_800, ge=60, description="How long replicas are told of a deletion; their caches must not be older."
    )
    orphans_poll_s: int = Field(
        default=3600, ge=1, description="Pause between rounds over all stored files for such as no revision knows."
    )
    orphan_age_s: int = Field(
        default=86_400, ge=0, description="How old those files are when they are removed; longer than any validation."
    )
    spend_ceiling_poll_s: int = Field(
        default=10, ge=1, le=3600, description="How soon after a month's turn its spend ceilings are published."
    )
    spend_ceiling_recount_s: int = Field(
        default=3600, ge=1, description="How often they are counted anew besides, for usage that came late."
    )
    upload_expires_s: int = Field(
        default=86_400, ge=60, description="An upload not completed this long after its announcement is given up."
    )
    idempotency_expires_s: int = Field(default=86_400, ge=60, description="How long a POST can be replayed.")
    cleanup_poll_s: int = Field(default=60, ge=1, description="How often expired uploads and responses are removed.")
    cleanup_batch_max: int = Field(default=100, ge=1, description="Uploads removed in one go.")
    loop_backoff_max_s: int = Field(default=10, ge=1, description="Longest pause of a loop whose step keeps failing.")
    worker_stop_s: int = Field(
        default=30, ge=1, description="How long SIGTERM waits for the loops to finish their step."
    )


@dataclass(frozen=True, kw_only=True)
class ControlSettings:
    """Everything either process reads; each part comes from the environment unless it is given."""

    web: WebSettings = field(default_factory=WebSettings)
    cors: CorsSettings = field(default_factory=CorsSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    publishing: PublishingSettings = field(default_factory=PublishingSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    keys: KeySettings = field(default_factory=KeySettings)
    upload: UploadSettings = field(default_factory=UploadSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
