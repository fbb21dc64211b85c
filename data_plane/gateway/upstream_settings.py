"""Limits for a gateway's replicas: placement, connections, circuit breakers, retries, and one request on a replica; and
for what it relays to the control plane.
"""

from typing import Self

from pydantic import Field, model_validator

from core.settings import Fragment, HttpUrl


class UpstreamSettings(Fragment):
    """How a gateway chooses replicas, and how long it waits for them."""

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

    # Files and batches, which the control plane serves.
    control_url: HttpUrl = Field(
        default=None,
        description="Address of the control plane, to which the gateway relays files and batches, such as "
        "http://control:8081. Empty: it serves none.",
    )
    relays_max: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="Requests about files and batches that one gateway process relays at once; at most half are of "
        "one tenant. Further ones get 503.",
    )
    relay_body_max_bytes: int = Field(
        default=210_000_000, ge=1024, description="Bytes of a body that the gateway relays to the control plane."
    )
    relay_idle_s: float = Field(
        default=30,
        gt=0,
        description="How long the gateway waits for the next piece of a body that it relays, and for "
        "its reader to take it.",
    )
    relay_answer_s: float = Field(
        default=120, gt=0, description="How long the gateway waits for an answer of the control plane to begin."
    )

    # Outside providers.
    provider_connections_max: int = Field(
        default=256, ge=1, le=10_000, description="Connections to one outside provider that a gateway process holds."
    )
    provider_connect_s: float = Field(
        default=5, gt=0, description="How long the gateway tries to connect to an outside provider."
    )
    provider_keepalive_s: float = Field(
        default=30, gt=0, description="How long an idle connection to an outside provider stays open."
    )
    provider_first_event_s: float = Field(
        default=120, gt=0, description="How long the gateway waits for the first event of an outside provider's stream."
    )
    provider_between_events_s: float = Field(
        default=60, gt=0, description="How long the gateway waits between two events of an outside provider's stream."
    )
    provider_attempts_max: int = Field(
        default=2, ge=1, le=4, description="How often the gateway sends one request to an outside provider."
    )
    provider_retry_wait_max_s: float = Field(
        default=5, ge=0, description="A request is not sent again if an outside provider asks for a longer pause."
    )

    @model_validator(mode="after")
    def _check_polls(self) -> Self:
        """A stall is seen only by polls that come more often than it lasts."""
        self.require_shorter("replica_poll_ms", "engine_stalled_s")
        return self

    @property
    def longest_ms(self) -> int:
        """How long a request can be on a replica at most: its own limit, and then the time to abort it."""
        return round((self.request_s + self.abort_s) * 1000)
