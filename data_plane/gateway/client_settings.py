"""Limits for a gateway's callers: their connections, the bodies that they send, JSON Schemas, and Idempotency-Keys."""

from pydantic import Field

from core.settings import Fragment, Origins


class ClientSettings(Fragment):
    """What a caller of the gateway may send, and how long it may take."""

    # The server, and its callers' connections.
    gateway_host: str = Field(default="127.0.0.1", description="Address on which the gateway listens.")
    gateway_port: int = Field(default=8080, ge=0, le=65535, description="Port on which the gateway listens.")
    gateway_drain_notice_s: float = Field(
        default=0,
        ge=0,
        le=300,
        description="After SIGTERM, how long the gateway still accepts requests while its `/readyz` answers 503: at "
        "least the time that a load balancer takes to notice. Then the drain begins.",
    )
    gateway_drain_s: int = Field(
        default=610,
        ge=1,
        description="After SIGTERM and the notice, how long the gateway lets running requests finish. Keep it above "
        "`TENORA_REQUEST_S`, and what stops gateways more patient than this.",
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
    gateway_cors_origins: Origins = Field(
        default=(),
        description="Origins whose pages may call the gateway from a browser, such as https://app.example.com; by "
        "commas. Empty: none.",
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
        default=2_097_152, ge=1024, description="Bytes of a request body. The gateway refuses a larger body."
    )
    body_s: float = Field(default=30, gt=0, description="How long a client may take to send the request body.")
    json_depth_max: int = Field(
        default=48, ge=4, description="Nesting depth of a JSON request body. The gateway refuses a deeper body."
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
        default=4096, ge=1, description="Messages in one chat request. The gateway refuses a request with more."
    )
    tools_max_bytes: int = Field(
        default=262_144,
        ge=1024,
        description="Bytes of all tools of one request together, with their descriptions and schemas. Engines compile "
        "them as one grammar, within the limits for one schema.",
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
        default=15,
        gt=0,
        le=60,
        description="How long compiling one JSON Schema, or all tools of a request, may take before it is refused.",
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
        default=50_331_648,
        ge=1024,
        description="Compiled size of one JSON Schema, or of all tools of a request. The gateway refuses a larger one.",
    )
    schema_waiting_max: int = Field(
        default=64, ge=1, description="Requests whose new schemas wait to be compiled. The gateway refuses more."
    )
    schemas_per_minute: int = Field(
        default=120, ge=1, description="New schemas of one tenant that one process compiles each minute; 429 for more."
    )
    schema_cache_max: int = Field(default=4096, ge=1, description="Schemas whose results one gateway process caches.")
    schema_cache_max_bytes: int = Field(
        default=128 << 20,
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
