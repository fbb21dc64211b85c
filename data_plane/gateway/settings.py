"""Every limit, timeout and secret of the gateway, each with its unit. What others share is in core.settings."""

from pathlib import Path

from pydantic import Field, SecretStr

from core.contracts.usage import CHECKPOINT_TOKENS_MAX
from core.redis_keys import GATEWAYS_LEASE_S_MAX
from core.settings import EngineKeySettings, Fragment, KeySettings, RedisSettings, TelemetrySettings
from data_plane.gateway.connection_settings import ConnectionSettings
from data_plane.gateway.preparation_settings import PreparationSettings
from data_plane.gateway.sharing_settings import SharingSettings


class DurabilitySettings(Fragment):
    """What a gateway keeps so that its death loses nothing."""

    checkpoint_s: float = Field(
        default=1, gt=0, le=1, description="How old the last checkpoint of a running request may be."
    )
    checkpoint_tokens: int = Field(
        default=48,
        ge=1,
        le=CHECKPOINT_TOKENS_MAX,
        description="Tokens after which a running request gets another checkpoint.",
    )
    sweep_s: float = Field(default=2, gt=0, description="How often requests whose gateway died are looked for.")
    sweep_tenants_max: int = Field(default=100, ge=1, description="Tenants looked at in one sweep.")
    journal_dir: Path = Field(
        default=Path(".tenora/journal"),
        description="Folder of settlements that Redis does not have yet; gateways of one machine share it, by Redis.",
    )
    journal_segment_max_bytes: int = Field(default=4_194_304, ge=4096, description="Bytes of one file of a journal.")
    journal_max_bytes: int = Field(default=268_435_456, ge=65_536, description="Bytes one process may journal.")
    journal_group_ms: int = Field(
        default=10, ge=0, le=1000, description="How long settlements wait for others to share one fsync of the journal."
    )
    journal_takeover_s: float = Field(
        default=5, gt=0, description="How often journals of dead processes are looked for."
    )
    settlement_kept_s: float = Field(
        default=5, ge=0, description="How long a settlement is kept at least, to be repeated to a Redis that restarted."
    )
    settlement_kept_max: int = Field(
        default=50_000,
        ge=1,
        description="Settlements kept for that until billing has recorded them, about a kilobyte each.",
    )


class ReplicaHealthSettings(Fragment):
    """When a replica is given up, left alone and tried again."""

    breaker_failures: int = Field(default=5, ge=1, description="Failures in a row after which a replica is left alone.")
    breaker_open_s: float = Field(default=5, gt=0, description="For how long at first; it doubles with each trial.")
    breaker_open_max_s: float = Field(default=60, gt=0, description="For how long at most.")
    replica_adapter_spared_s: float = Field(
        default=5,
        gt=0,
        le=60,
        description="How long others are asked for an adapter that a replica could not bring in.",
    )
    retry_percent: int = Field(default=10, ge=0, le=100, description="Requests that may be tried a second time.")
    retry_burst: int = Field(default=20, ge=0, description="Second attempts that may be made at once.")
    replica_silent_s: float = Field(
        default=30, gt=0, description="A whole answer is given up when its engine counts no token for this long."
    )
    replica_signs_poll_ms: int = Field(
        default=1000, ge=10, description="How often the counters of such engines are read."
    )


class StandingSettings(Fragment):
    """For how long a running request outlives its key."""

    standing_s: float = Field(
        default=5, gt=0, le=30, description="How often running requests are checked for revoked keys."
    )


class SliceSettings(Fragment):
    """What is taken of quotas beforehand, for plans that are served while Redis does not answer."""

    quota_slice_requests: int = Field(
        default=2,
        ge=0,
        le=100,
        description="Requests one gateway can admit for a caller while Redis is silent: for beat_lease_s.",
    )
    quota_slice_tokens: int = Field(
        default=2048, ge=16, le=1_000_000, description="Tokens each of them may take, prompt and completion together."
    )
    quota_slice_idle_s: float = Field(
        default=120, gt=0, description="Slices of a caller who has asked for nothing this long are given back."
    )
    quota_slice_callers_max: int = Field(default=1000, ge=1, description="Callers one process has slices for.")


class GatewaySettings(
    RedisSettings,
    PreparationSettings,
    KeySettings,
    EngineKeySettings,
    TelemetrySettings,
    DurabilitySettings,
    ReplicaHealthSettings,
    ConnectionSettings,
    StandingSettings,
    SliceSettings,
    SharingSettings,
):
    """The gateway's environment."""

    salt_secret: SecretStr = Field(
        min_length=16, description="HMAC secret from which each tenant's prefix-cache salt is derived."
    )

    gateway_host: str = Field(default="127.0.0.1", description="Address to listen on.")
    gateway_port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on.")
    gateway_drain_s: int = Field(
        default=60, ge=1, description="How long running requests may take to end after SIGTERM."
    )

    idempotency_answer_max_bytes: int = Field(
        default=262_144, ge=1024, description="The largest answer that is kept for an Idempotency-Key."
    )
    idempotency_kept_max: int = Field(
        default=256, ge=1, description="Answers that are kept for one tenant's Idempotency-Keys; the oldest go first."
    )
    idempotency_expires_s: int = Field(default=86_400, ge=60, description="How long an answer is kept at most.")
    idempotency_lease_s: float = Field(
        default=30, ge=3, description="How long the Idempotency-Key of a dead gateway's request stays in flight."
    )
    idempotency_deadline_ms: int = Field(
        default=500, ge=1, description="How long Redis may take to remember an Idempotency-Key."
    )

    redis_connect_s: float = Field(default=1, gt=0, description="How long a connection to Redis may take.")
    redis_read_s: float = Field(default=15, gt=11, description="How long Redis may be silent to the followers.")
    redis_stalled_s: float = Field(default=3, gt=0, description="A line to Redis silent this long is given up.")
    redis_pending_max: int = Field(default=20_000, ge=1, description="Commands that may wait for Redis's replies.")
    reserve_deadline_ms: int = Field(
        default=50, ge=1, description="How long a reservation may take before it is refused."
    )
    min_completion_tokens: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="A caller who sets no max_tokens is served while quotas leave room for so many.",
    )
    platform_requests_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Requests a minute that all tenants together may make."
    )
    platform_tokens_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Tokens a minute that all tenants together may take."
    )
    platform_input_tokens_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Prompt tokens of those, alone."
    )
    platform_output_tokens_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Completion tokens of those, alone."
    )
    platform_concurrent_requests: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Requests that all tenants together may have in work."
    )
    platform_kv_pages: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="KV pages that all tenants together may have in flight."
    )
    lease_s: float = Field(default=20, gt=0, description="How long a reservation outlives the gateway that made it.")
    lease_renewal_s: float = Field(default=5, gt=0, description="How often leases of running requests are renewed.")
    settled_marker_s: int = Field(
        default=3600, ge=60, description="How long a second settlement of a request is recognised."
    )
    settlement_deadline_s: float = Field(
        default=2, gt=0, description="How long a settlement may take before it is retried."
    )
    settlement_backlog_max: int = Field(
        default=10_000, ge=1, description="Settlements kept in memory while Redis is away."
    )
    settlement_drain_s: float = Field(
        default=15, gt=0, description="How long the last settlements may take at shutdown."
    )
    settlement_retry_s: float = Field(default=0.5, gt=0, description="Pause between attempts at a settlement.")

    admission_waiting_max: int = Field(
        default=256, ge=0, description="Requests that may wait for room on replicas, for each base model."
    )
    admission_waiting_tokens_max: int = Field(
        default=2_000_000, ge=0, description="Tokens that waiting requests may take at most, for each base model."
    )
    admission_tenant_waiting_max: int = Field(
        default=128, ge=0, description="Requests of one tenant that may wait, for each base model."
    )
    admission_wait_s: float = Field(
        default=10, ge=0, description="How long a request may wait; one whose turn is further off is refused at once."
    )
    admission_passed_over_s: float = Field(
        default=2, ge=0, description="How long others may go before a waiting request whose turn has come."
    )
    admission_poll_ms: int = Field(
        default=50, ge=1, description="How often Redis is asked whether another gateway has made room, while any wait."
    )

    placement_store_ms: float = Field(
        default=600, ge=0, description="What bringing an adapter from the store to a replica's disk counts."
    )
    placement_disk_ms: float = Field(
        default=50, ge=0, description="What reading an adapter from a replica's disk counts."
    )
    placement_slot_ms: float = Field(
        default=35, ge=0, description="What copying an adapter into a slot counts, for each request that it holds up."
    )
    placement_prompt_token_ms: float = Field(
        default=0.05, ge=0, description="What each prompt token counts that a replica has not read yet."
    )
    placement_running_ms: float = Field(
        default=2, ge=0, description="What each request counts that runs on a replica already."
    )
    placement_headroom_percent: float = Field(
        default=5,
        ge=0,
        le=50,
        description="Share of a replica's KV pages that a tenant with its fair share of the pool leaves to others.",
    )

    replica_poll_ms: int = Field(default=250, ge=10, description="How often the list of replicas is read.")
    replica_stale_s: float = Field(
        default=5, gt=0, description="A replica whose heartbeat stands still this long is not used."
    )
    replica_attempts_max: int = Field(
        default=2, ge=1, le=3, description="Replicas tried for one request before the first byte."
    )
    replica_keepalive_s: float = Field(
        default=3, gt=0, description="How long an idle connection to a replica is kept; vLLM closes them after 5 s."
    )
    replica_connections_max: int = Field(
        default=10_000, ge=1, description="Connections one process may hold to replicas."
    )
    replica_connections_spare: int = Field(
        default=64, ge=1, description="Connections beyond those, for aborts and for asking replicas for their health."
    )
    replica_head_max_bytes: int = Field(
        default=65_536, ge=1024, description="Bytes of status line and headers of a replica's answer."
    )
    replica_unread_max_bytes: int = Field(
        default=32_768, ge=4096, description="Bytes of one answer that may wait here for a caller who reads slowly."
    )

    connect_s: float = Field(default=2, gt=0, description="How long a connection to a replica may take.")
    first_byte_s: float = Field(default=60, gt=0, description="How long a replica may take to its first byte.")
    inter_token_s: float = Field(default=13, gt=0, description="How long a stream may stand still.")
    request_s: float = Field(default=600, gt=0, description="How long one request may run.")
    last_write_s: float = Field(default=10, gt=0, description="How long the end of a response may take to be written.")
    abort_s: float = Field(
        default=10, gt=0, description="How long an aborted request may take to report its final count."
    )
    abort_repeat_ms: int = Field(
        default=300, ge=10, description="How often an abort is repeated until the stream ends."
    )
    event_max_bytes: int = Field(default=1_048_576, ge=1024, description="Bytes of one event of a replica's stream.")
    response_max_bytes: int = Field(
        default=16_777_216, ge=1024, description="Bytes of a replica's whole response; a larger one is not passed on."
    )

    heat_flush_s: float = Field(default=1, gt=0, le=60, description="How often last uses of adapters are written.")
    heat_names_max: int = Field(default=10_000, ge=1, description="Last uses gathered between two writes.")
    heat_kept_max: int = Field(default=10_000, ge=1, description="Last uses kept in Redis for one pool of replicas.")
    listing_hint_again_s: float = Field(
        default=300, gt=0, description="A key that lists the models gives replicas hints once in this time."
    )
    listing_hint_keys_max: int = Field(default=10_000, ge=1, description="Keys whose last listing is remembered.")
    listing_hint_adapters_max: int = Field(default=4, ge=1, le=64, description="Adapters hinted at by one listing.")
    listing_hints_sending_max: int = Field(
        default=32, ge=1, description="Listings whose hints may be on their way at once; more give none."
    )

    snapshot_block_ms: int = Field(
        default=1000, ge=10, le=10_000, description="How long one read of the change stream waits."
    )
    beat_period_ms: int = Field(
        default=1000, ge=10, le=10_000, description="How often a gateway process says by which snapshot it decides."
    )
    beat_lease_s: float = Field(
        default=5,
        ge=2,
        le=GATEWAYS_LEASE_S_MAX,
        description="A process that has not said so for this long serves nothing, and nobody waits for it.",
    )
    snapshot_batch_max: int = Field(default=500, ge=1, description="Changes taken in one read.")

    @property
    def longest_ms(self) -> int:
        """For how long a request can be on a replica: until its time is up, and until it has then been aborted."""
        return round((self.request_s + self.abort_s) * 1000)
