"""Every limit, timeout and secret of a gateway process, each with its unit. Settings that other processes read as well
are in core.settings.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from core.contracts.usage import CHECKPOINT_TOKENS_MAX
from core.redis_keys import GATEWAYS_LEASE_S_MAX
from core.settings import EngineKeySettings, KeySettings, RedisSettings, TelemetrySettings
from core.snapshot_settings import SnapshotVerifyingSettings

_PlatformLimit = Annotated[int, Field(ge=1, le=1_000_000_000)] | None


class GatewaySettings(RedisSettings, KeySettings, EngineKeySettings, SnapshotVerifyingSettings, TelemetrySettings):
    """The gateway's environment."""

    salt_secret: SecretStr = Field(
        min_length=16,
        description="HMAC secret from which every gateway derives each tenant's prefix-cache salt. Use the same secret "
        "on all gateways.",
    )

    # The server, and its callers' connections.
    gateway_host: str = Field(default="127.0.0.1", description="Address on which the gateway listens.")
    gateway_port: int = Field(default=8080, ge=0, le=65535, description="Port on which the gateway listens.")
    gateway_drain_s: int = Field(
        default=60, ge=1, description="After SIGTERM, how long the gateway lets running requests finish."
    )
    gateway_connections_max: int = Field(
        default=20_000, ge=1, description="Client connections that one gateway process holds. It refuses more."
    )
    gateway_backlog: int = Field(
        default=2048, ge=1, description="Connections that the kernel queues until the gateway accepts them."
    )
    gateway_keepalive_s: int = Field(
        default=75, ge=1, description="How long the gateway keeps an idle client connection open."
    )
    client_tcp_timeout_s: int = Field(
        default=20,
        ge=1,
        le=600,
        description="The kernel closes a client connection when the client's machine acknowledges no data, or accepts "
        "none, for this long.",
    )
    client_write_buffer_max_bytes: int = Field(
        default=16_384,
        ge=1024,
        le=1_048_576,
        description="Bytes of one answer that the gateway buffers while the kernel accepts none. Beyond this the "
        "gateway stops reading from the engine.",
    )
    client_send_buffer_bytes: int = Field(
        default=131_072,
        ge=4096,
        le=16_777_216,
        description="Bytes of one answer that the kernel buffers for a client that reads slowly (SO_SNDBUF; the kernel "
        "allots twice as much memory). At most net.core.wmem_max.",
    )
    client_min_bytes_per_s: int = Field(
        default=16_384,
        ge=1,
        description="A client has TENORA_LAST_WRITE_S, and the time that the rest of its answer takes at this rate, to "
        "read the end of the answer. Then the gateway closes the connection.",
    )
    headers_max: int = Field(
        default=100, ge=1, description="Headers in one client request. The gateway refuses a request with more."
    )
    headers_max_bytes: int = Field(
        default=32_768, ge=1024, description="Bytes of a client's request line and headers. The gateway refuses more."
    )
    headers_s: float = Field(
        default=10, gt=0, description="How long a client may take to send the request line and the headers."
    )

    # A request's body: reading, checking, and counting the prompt.
    body_max_bytes: int = Field(
        default=1_048_576, ge=1024, description="Bytes of a request body. The gateway refuses a larger body."
    )
    body_s: float = Field(default=30, gt=0, description="How long a client may take to send the request body.")
    json_depth_max: int = Field(
        default=24, ge=4, description="Nesting depth of a JSON request body. The gateway refuses a deeper body."
    )
    parse_inline_max_bytes: int = Field(
        default=65_536,
        ge=0,
        description="The gateway parses larger request bodies in a thread, smaller ones on its event loop.",
    )
    tenant_preparing_max: int = Field(
        default=256,
        ge=1,
        description="Requests of one tenant that one process reads, checks and counts at the same time. It refuses "
        "further requests until one of them is prepared.",
    )
    tenant_unmetered_requests_per_s: float = Field(
        default=200,
        gt=0,
        le=1_000_000,
        description="Requests of one tenant that use no quota (rejected requests, token counts, model lists) and that "
        "one process answers each second, with a burst of five seconds' worth. Beyond this it answers 429.",
    )
    messages_max: int = Field(
        default=256, ge=1, description="Messages in one chat request. The gateway refuses a request with more."
    )
    tokenize_inline_max_bytes: int = Field(
        default=4096,
        ge=0,
        description="The gateway counts the prompts of larger bodies in a thread, others on its event loop.",
    )
    tokenizer_load_s: float = Field(
        default=2, gt=0, description="How long the gateway waits for Redis to return a tokenizer."
    )
    tokenize_threads: int = Field(
        default=2, ge=1, description="Threads of one gateway process that parse long bodies and count long prompts."
    )
    tokenize_waiting_max: int = Field(
        default=256,
        ge=1,
        description="Long bodies and prompts of all tenants that wait for a thread. More are refused.",
    )
    tokenize_tenant_waiting_max: int = Field(
        default=64, ge=1, description="Long bodies and prompts of one tenant that wait for a thread. More are refused."
    )
    token_count_cache_max_bytes: int = Field(
        default=16_777_216, ge=0, description="Memory for cached token counts of messages, for each tokenizer (LRU)."
    )
    tokenizers_max: int = Field(
        default=16, ge=1, description="Tokenizers that one gateway process keeps in memory, the last used ones."
    )

    # The compiler that checks the JSON Schemas of callers.
    schema_compile_s: float = Field(
        default=5, gt=0, le=60, description="How long compiling one JSON Schema may take before it is refused."
    )
    schema_start_s: float = Field(default=30, gt=0, description="How long the schema compiler may take to start.")
    schema_memory_bytes: int = Field(
        default=1 << 30, ge=256 << 20, description="Memory of the schema compiler. A schema that needs more is refused."
    )
    schema_user_id: int = Field(
        default=65_532,
        ge=1,
        le=4_294_967_294,
        description="User and group id of the schema compiler if the gateway is root. Choose one that owns no files.",
    )
    schema_compiled_max_bytes: int = Field(
        default=33_554_432, ge=1024, description="Size of one compiled JSON Schema. The gateway refuses a larger one."
    )
    schema_waiting_max: int = Field(
        default=64, ge=1, description="Requests whose new schemas wait to be compiled. The gateway refuses more."
    )
    schemas_per_minute: int = Field(
        default=120, ge=1, description="New schemas of one tenant that one process compiles each minute; 429 for more."
    )
    schema_cache_max: int = Field(default=4096, ge=1, description="Schemas whose results one gateway process caches.")
    schema_cache_max_bytes: int = Field(
        default=64 << 20,
        ge=1024,
        description="Compiled size of the cached schemas; together, all gateways stay below VLLM_XGRAMMAR_CACHE_MB.",
    )

    # Idempotency-Key.
    idempotency_answer_max_bytes: int = Field(
        default=262_144, ge=1024, description="Largest answer that the gateway stores for an Idempotency-Key."
    )
    idempotency_answers_max: int = Field(
        default=256, ge=1, description="Answers stored for one tenant's Idempotency-Keys. New ones replace the oldest."
    )
    idempotency_expires_s: int = Field(
        default=86_400, ge=60, description="How long the answer to an Idempotency-Key is stored at most."
    )
    idempotency_lease_s: float = Field(
        default=30, ge=3, description="How long an Idempotency-Key stays in use after its request's gateway has died."
    )
    idempotency_deadline_ms: int = Field(
        default=500, ge=1, description="How long the gateway waits for Redis to store an Idempotency-Key."
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
    queue_flex_wait_s: float = Field(
        default=120, ge=0, description="How long a flex request may wait in the queue; then it is refused with 429."
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

    # Placement: estimated costs, in milliseconds until a request's first token.
    placement_store_ms: float = Field(
        default=600, ge=0, description="Estimated cost of downloading an adapter from the object store to a replica."
    )
    placement_disk_ms: float = Field(
        default=50, ge=0, description="Estimated cost of reading an adapter from a replica's disk."
    )
    placement_slot_ms: float = Field(
        default=35, ge=0, description="Estimated cost of copying an adapter into a slot, for each request it delays."
    )
    placement_prompt_token_ms: float = Field(
        default=0.05, ge=0, description="Estimated cost of each prompt token that a replica has not processed yet."
    )
    placement_running_ms: float = Field(
        default=2, ge=0, description="Estimated cost of each request that already runs on a replica."
    )
    placement_headroom_percent: float = Field(
        default=5, ge=0, le=50, description="Share of a replica's KV pages kept for tenants below their fair share."
    )

    # Replicas: heartbeats, connections and circuit breakers.
    replica_poll_ms: int = Field(
        default=250, ge=10, description="How often the gateway reads the list of replicas from Redis."
    )
    replica_stale_s: float = Field(
        default=5, gt=0, description="The gateway sends no requests to a replica without a heartbeat for this long."
    )
    replica_attempts_max: int = Field(
        default=2, ge=1, le=3, description="Replicas that the gateway tries for one request before the first byte."
    )
    replica_keepalive_s: float = Field(
        default=3, gt=0, description="How long an idle connection to a replica stays open. vLLM closes after 5 s."
    )
    replica_connections_max: int = Field(
        default=10_000, ge=1, description="Connections to replicas that one gateway process holds for requests."
    )
    replica_connections_reserved: int = Field(
        default=64, ge=1, description="Further connections to replicas, only for aborts and for health checks."
    )
    replica_headers_max_bytes: int = Field(
        default=65_536, ge=1024, description="Bytes of a replica's status line and headers; more fails the request."
    )
    replica_read_buffer_max_bytes: int = Field(
        default=32_768, ge=4096, description="Bytes of one replica's response that are buffered for a slow caller."
    )
    breaker_failures: int = Field(
        default=5, ge=1, description="Consecutive failures after which a replica's circuit breaker opens."
    )
    breaker_open_s: float = Field(
        default=5, gt=0, description="How long an open circuit breaker blocks requests; each failed trial doubles it."
    )
    breaker_open_max_s: float = Field(
        default=60, gt=0, description="How long an open circuit breaker blocks requests at most."
    )
    adapter_failure_backoff_s: float = Field(
        default=5, gt=0, le=60, description="How long a replica that failed to load an adapter is avoided for it."
    )
    retry_percent: int = Field(
        default=10, ge=0, le=100, description="Retry budget: share of requests that may be tried a second time."
    )
    retry_burst: int = Field(
        default=20, ge=0, description="Retry budget: second attempts that the gateway may make in a burst."
    )
    engine_stalled_s: float = Field(
        default=30, gt=0, description="A non-streamed answer is abandoned if its engine counts no token for so long."
    )
    engine_liveness_poll_ms: int = Field(
        default=1000,
        ge=10,
        description="How often the gateway reads the token counters of engines that generate whole answers.",
    )

    unary_progress_poll_ms: int = Field(
        default=400,
        ge=10,
        le=1000,
        description="How often the gateway asks engines how far they have got with whole answers, for checkpoints.",
    )

    # One request on a replica.
    connect_s: float = Field(default=2, gt=0, description="How long the gateway tries to connect to a replica.")
    first_byte_s: float = Field(
        default=60, gt=0, description="How long the gateway waits for the first byte of a replica's response."
    )
    inter_token_s: float = Field(
        default=13, gt=0, description="How long the gateway waits between two events of a replica's stream."
    )
    request_s: float = Field(default=600, gt=0, description="How long one request may run. Then the gateway aborts it.")
    last_write_s: float = Field(
        default=10, gt=0, description="How long the gateway waits for a client to accept the end of its answer."
    )
    abort_s: float = Field(
        default=10, gt=0, description="How long the gateway waits for the final token count of an aborted request."
    )
    abort_repeat_ms: int = Field(
        default=300, ge=10, description="How often the gateway repeats an abort until the replica's stream ends."
    )
    event_max_bytes: int = Field(
        default=1_048_576,
        ge=1024,
        description="Size of one event of a replica's stream; a larger one fails the request.",
    )
    response_max_bytes: int = Field(
        default=8_388_608,
        ge=1024,
        description="Size of a replica's non-streamed response; a larger one fails its request.",
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
        default=1024, ge=0, le=100_000, description="Adapters in use that a gateway reports to the other gateways."
    )
    peer_backlog_stale_ms: int = Field(
        default=1000, ge=500, description="Age after which gateways ignore another gateway's report of its tenants."
    )
    last_used_flush_s: float = Field(
        default=1, gt=0, le=60, description="How often the gateway writes to Redis when adapters were last used."
    )
    last_used_names_max: int = Field(
        default=10_000, ge=1, description="Adapters whose last use the gateway remembers until it is written."
    )
    last_used_stored_max: int = Field(
        default=10_000, ge=1, description="Adapters whose last use Redis stores for one pool of replicas, the newest."
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
        self.require_shorter("engine_liveness_poll_ms", "engine_stalled_s")
        return self

    @property
    def longest_ms(self) -> int:
        """How long a request can be on a replica at most: its own limit, and then the time to abort it."""
        return round((self.request_s + self.abort_s) * 1000)
