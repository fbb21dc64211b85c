"""Every limit, timeout and secret of a gateway process, each with its unit. Settings that other processes read as well
are in core.settings.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from core.contracts.usage import CHECKPOINT_TOKENS_MAX
from core.provider_settings import ProviderSettings
from core.redis_keys import GATEWAYS_LEASE_S_MAX
from core.settings import EngineKeySettings, KeySettings, RedisSettings, TelemetrySettings
from core.snapshot_settings import SnapshotVerifyingSettings
from data_plane.gateway.client_settings import ClientSettings
from data_plane.gateway.trace_settings import TraceSettings
from data_plane.gateway.upstream_settings import UpstreamSettings

_PlatformLimit = Annotated[int, Field(ge=1, le=1_000_000_000)] | None


class GatewaySettings(
    ClientSettings,
    UpstreamSettings,
    RedisSettings,
    KeySettings,
    EngineKeySettings,
    SnapshotVerifyingSettings,
    ProviderSettings,
    TelemetrySettings,
    TraceSettings,
):
    """The gateway's environment: for its callers, for its replicas, and for what all gateways share in Redis."""

    salt_secret: SecretStr = Field(
        min_length=16,
        description="HMAC secret from which every gateway derives each tenant's prefix-cache salt. Use the same secret "
        "on all gateways.",
    )

    # Redis.
    redis_connect_s: float = Field(default=1, gt=0, description="How long the gateway tries to connect to Redis.")
    redis_read_s: float = Field(
        default=15, gt=11, description="How long background tasks wait for a reply from Redis before they reconnect."
    )
    redis_stalled_s: float = Field(
        default=3, gt=0, description="The request path reconnects to Redis after waiting this long for a reply."
    )
    redis_pending_max: int = Field(
        default=20_000, ge=1, description="The request path reconnects to Redis when so many commands wait for replies."
    )

    # Quotas.
    reserve_deadline_ms: int = Field(
        default=50,
        ge=1,
        description="How long a reservation in Redis may take. Then the tenant's plan decides whether the request is "
        "refused or served from a quota slice.",
    )
    min_completion_tokens: int = Field(
        default=16, ge=1, le=4096, description="A request without max_tokens is served if quotas allow this many."
    )
    platform_requests_per_minute: _PlatformLimit = Field(
        default=None, description="Requests of all tenants together each minute. Empty: no limit."
    )
    platform_tokens_per_minute: _PlatformLimit = Field(
        default=None, description="Prompt and completion tokens of all tenants together each minute. Empty: no limit."
    )
    platform_input_tokens_per_minute: _PlatformLimit = Field(
        default=None, description="Prompt tokens of all tenants together each minute. Empty: no limit."
    )
    platform_output_tokens_per_minute: _PlatformLimit = Field(
        default=None, description="Completion tokens of all tenants together each minute. Empty: no limit."
    )
    platform_concurrent_requests: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Running requests of all tenants together. Empty: no limit."
    )
    platform_kv_pages: _PlatformLimit = Field(
        default=None, description="KV pages that all tenants together reserve. Empty: no limit."
    )
    quota_slice_requests: int = Field(
        default=2,
        ge=0,
        le=100,
        description="Requests of one caller that one gateway admits from a quota slice while Redis does not answer, "
        "for at most TENORA_HEARTBEAT_LEASE_S. Only for plans that allow it.",
    )
    quota_slice_tokens: int = Field(
        default=2048,
        ge=16,
        le=1_000_000,
        description="Prompt and completion tokens of a request admitted by a quota slice.",
    )
    quota_slice_idle_s: float = Field(
        default=120, gt=0, description="The gateway returns the quota slice of a caller without requests for this long."
    )
    quota_slice_callers_max: int = Field(
        default=1000, ge=1, description="Callers for which one gateway process holds quota slices."
    )

    # Settlement: what keeps usage when a process or Redis fails.
    lease_s: float = Field(
        default=20, gt=0, description="After a gateway dies, how long the reservations that it made stay valid."
    )
    lease_renewal_s: float = Field(
        default=5, gt=0, description="How often the gateway renews the leases of its running requests."
    )
    checkpoint_s: float = Field(
        default=1, gt=0, le=1, description="Age of a running request's last checkpoint at which the next is written."
    )
    checkpoint_tokens: int = Field(
        default=48,
        ge=1,
        le=CHECKPOINT_TOKENS_MAX,
        description="The gateway writes a running request's next checkpoint after this many tokens.",
    )
    sweep_s: float = Field(
        default=2, gt=0, description="How often a gateway looks for requests of dead gateways, to settle them."
    )
    sweep_tenants_max: int = Field(default=100, ge=1, description="Tenants that one sweep for expired leases covers.")
    settled_marker_s: int = Field(
        default=3600,
        ge=60,
        description="How long Redis remembers a settled request, so that no second settlement counts.",
    )
    settlement_deadline_s: float = Field(
        default=2, gt=0, description="How long one settlement in Redis may take before the gateway retries it."
    )
    settlement_backlog_max: int = Field(
        default=10_000, ge=1, description="Settlements held while Redis is away. More are logged in full and dropped."
    )
    settlement_drain_s: float = Field(
        default=15, gt=0, description="At shutdown, how long the gateway tries to settle its last requests."
    )
    settlement_retry_s: float = Field(
        default=0.5, gt=0, description="Pause between two attempts at the settlements in the backlog."
    )
    journal_dir: Path = Field(
        default=Path(".tenora/journal"),
        description="Folder for journals of unconfirmed settlements; gateways of one machine must share it.",
    )
    journal_segment_max_bytes: int = Field(default=4_194_304, ge=4096, description="Size of one journal file.")
    journal_max_bytes: int = Field(
        default=268_435_456, ge=65_536, description="Size of all journal files of one gateway process."
    )
    journal_group_ms: int = Field(
        default=10, ge=0, le=1000, description="How long a journal record waits for others to share one fsync."
    )
    journal_recovery_s: float = Field(
        default=5, gt=0, description="How often a gateway looks for journals of dead processes, to replay them."
    )
    replay_buffer_s: float = Field(
        default=5,
        ge=0,
        description="How long a settlement is kept at least, to replay it if a restarted Redis lost it.",
    )
    replay_buffer_max: int = Field(
        default=50_000, ge=1, description="Settlements kept for a replay until billing has recorded them; 1 kB each."
    )

    # The request log, and the access log.
    request_log_entries_max: int = Field(
        default=200_000,
        ge=0,
        le=10_000_000,
        description="Entries of the request log that Redis keeps until the worker has stored them, of about 1 kB each. "
        "Above this the oldest are dropped. 0: no request log.",
    )
    request_log_refusals_max: int = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Refused requests that one gateway process sends to the request log at a time in rows of their "
        "own. Above this, those of the same key and cause are counted in one row.",
    )
    request_log_refusals_s: float = Field(
        default=1, gt=0, le=60, description="How often the gateway sends its refused requests to the request log."
    )
    gateway_access_log: bool = Field(
        default=True, description="Whether the gateway logs one line for each request, without any text of it."
    )

    # The wait queue.
    queue_requests_max: int = Field(
        default=256,
        ge=0,
        description="Requests in the wait queue of one base model. When it is full, a new request is refused or "
        "replaces one of a tenant with more waiting requests.",
    )
    queue_tokens_max: int = Field(
        default=2_000_000, ge=0, description="Tokens of all requests in the wait queue of one base model."
    )
    queue_tenant_requests_max: int = Field(
        default=128, ge=0, description="Requests of one tenant in the wait queue of one base model."
    )
    queue_wait_s: float = Field(
        default=10, ge=0, description="How long a request may wait in the queue; refused at once if its turn is later."
    )
    queue_batch_wait_s: float = Field(
        default=120, ge=0, description="How long a batch request may wait in the queue; then it is refused with 429."
    )
    queue_overdue_after_s: float = Field(
        default=2,
        ge=0,
        description="How long smaller requests may overtake a waiting request whose turn has come but which does not "
        "fit yet. After this the gateway keeps pages free for it.",
    )
    queue_poll_ms: int = Field(
        default=50, ge=1, description="While requests wait, how often the gateway reads freed pages from Redis."
    )

    # Groups of models.
    route_conversations_max: int = Field(
        default=50_000, ge=1, description="Conversations of which one process remembers the group's member."
    )
    route_idle_s: float = Field(
        default=600, gt=0, description="A conversation without requests for this long may get another member."
    )

    # What gateways share: the snapshot, heartbeats, fair shares, and hints for prefetching.
    snapshot_block_ms: int = Field(
        default=1000, ge=10, le=10_000, description="How long one read of the change stream in Redis blocks."
    )
    snapshot_batch_max: int = Field(
        default=500, ge=1, description="Changes that one read of the change stream returns."
    )
    heartbeat_period_ms: int = Field(
        default=1000, ge=10, le=10_000, description="How often a process writes its heartbeat and the snapshot it uses."
    )
    heartbeat_lease_s: float = Field(
        default=5,
        ge=2,
        le=GATEWAYS_LEASE_S_MAX,
        description="A gateway process without a heartbeat for this long serves no requests, and publishers stop "
        "waiting for it.",
    )
    access_check_s: float = Field(
        default=5, gt=0, le=30, description="How often running requests are checked for revoked keys and tenants."
    )
    peer_backlog_tenants_max: int = Field(
        default=1024, ge=1, le=10_000, description="Tenants that a gateway reports by name to others; the rest as one."
    )
    peer_backlog_adapters_max: int = Field(
        default=1024,
        ge=0,
        le=100_000,
        description="Adapters in use that a gateway reports to the other gateways and to the fleet process.",
    )
    peer_backlog_stale_ms: int = Field(
        default=1000, ge=500, description="Age after which gateways ignore another gateway's report of its tenants."
    )
    listing_hint_interval_s: float = Field(
        default=300, gt=0, description="How often one key's model lists send prefetch hints to replicas at most."
    )
    listing_hint_keys_max: int = Field(
        default=10_000, ge=1, description="Keys whose last model list one gateway process remembers."
    )
    listing_hint_adapters_max: int = Field(
        default=4, ge=1, le=64, description="Adapters for which one model list sends prefetch hints."
    )
    listing_hints_sending_max: int = Field(
        default=32, ge=1, description="Model lists whose prefetch hints are being sent at once; more send none."
    )

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        """Each interval must be shorter than the time after which its absence counts as a failure."""
        self.require_shorter("lease_renewal_s", "lease_s")
        self.require_shorter("heartbeat_period_ms", "heartbeat_lease_s")
        return self
