"""Settings of one replica: the engine's shape, its address, and how its agent watches it."""

from pathlib import Path

from pydantic import Field

from core.settings import EngineKeySettings, Fragment, RedisSettings, TelemetrySettings


class AdapterTaskSettings(Fragment):
    """What the agent does for adapters beside serving them: revocations, canaries, prefetching, pins."""

    residency_scan_interval_s: float = Field(
        default=0.25, gt=0, le=10, description="Between two looks at where adapters lie."
    )
    engine_control_timeout_s: float = Field(
        default=10, gt=0, le=120, description="How long the engine's door may take to answer."
    )
    background_task_backoff_max_s: float = Field(
        default=5, gt=0, le=300, description="Longest pause before a failed side task of the agent is repeated."
    )
    revocation_scan_interval_s: float = Field(
        default=1, gt=0, le=10, description="Between two looks at what was revoked."
    )
    revocation_drain_timeout_s: float = Field(
        default=30, ge=0, le=600, description="How long requests of a revoked adapter may go on before they are ended."
    )
    revocation_unloads_max: int = Field(
        default=4, ge=1, le=64, description="Revoked adapters unloaded at the same time."
    )
    revocation_retry_max_s: float = Field(
        default=15, gt=0, le=600, description="Longest pause before an adapter that is still there is unloaded again."
    )
    revocation_start_timeout_s: float = Field(
        default=30, ge=0, le=600,
        description="How long a starting replica waits for revoked adapters to leave its disk.",
    )  # fmt: skip
    revocation_receipt_ttl_s: int = Field(
        default=1_209_600, ge=3600, description="How long a receipt waits in Redis to be collected."
    )
    canary_load_timeout_s: float = Field(
        default=20,
        gt=0,
        le=600,
        description="Longest loading of a canary's adapter; then its job is left to be asked again.",
    )
    canary_answer_timeout_s: float = Field(
        default=30, gt=0, le=600, description="Longest single answer in a canary run."
    )
    canary_answer_tokens: int = Field(default=16, ge=4, le=128, description="Tokens of a canary's sample answer.")
    canary_rounds_max: int = Field(
        default=3, ge=1, le=10, description="Comparisons with the base when other requests' noise hides the difference."
    )
    prefetch_queue_max: int = Field(
        default=64, ge=1, le=10_000, description="Adapters waiting to be prefetched; the oldest is dropped for a newer."
    )
    prefetch_pause_s: float = Field(default=0.2, ge=0, le=60, description="Pause after each prefetched adapter.")
    prefetch_retry_after_s: float = Field(
        default=30, ge=0, le=3600, description="What was prefetched, or could not be, is not tried again for so long."
    )
    prefetch_timeout_s: float = Field(default=60, gt=0, le=600, description="Longest prefetch of one adapter.")
    prefetch_evict_idle_s: float = Field(
        default=300, ge=0, description="An adapter used within this time is never evicted from memory by a prefetch."
    )
    prefetch_useful_within_s: float = Field(
        default=600, gt=0, description="A prefetched adapter that is not used within this time was prefetched in vain."
    )
    forecast_interval_s: float = Field(
        default=2, gt=0, le=60, description="Between two forecasts of what is asked for next."
    )
    forecast_horizon_s: float = Field(default=10, gt=0, le=600, description="How far ahead a forecast prefetches.")
    forecast_visit_gap_s: float = Field(
        default=60, gt=0, description="Uses of an adapter closer together than this are one visit."
    )
    forecast_adapters_max: int = Field(default=10_000, ge=1, description="Adapters whose uses are remembered.")
    pins_scan_interval_s: float = Field(default=5, gt=0, le=60, description="Between two looks at what plans pin.")


class SharedEngineSettings(Fragment):
    """What the agent, the door and the worker of one replica agree on; the agent hands it to its engine."""

    replica_id: str = Field(default="rep_local", pattern=r"^rep_[a-z0-9_]{1,40}$", description="Name of this replica.")
    engine_run_dir: Path = Field(
        default=Path(".tenora/run"), description="Folder in which each replica keeps its socket and residency table."
    )
    engine_slots: int = Field(default=8, ge=1, le=256, description="Adapters that one batch can mix (vLLM max_loras).")
    engine_memory_adapters: int = Field(
        default=64, ge=1, le=10_000, description="Adapters kept in host memory (vLLM max_cpu_loras)."
    )
    engine_loader_threads: int = Field(
        default=1, ge=1, le=16, description="Adapters read from the disk at the same time, beside the steps."
    )

    @property
    def run_dir(self) -> Path:
        """The run folder of this replica alone."""
        return self.engine_run_dir.absolute() / self.replica_id

    @property
    def memory_adapters(self) -> int:
        """Adapters that fit host memory: vLLM wants no fewer than slots."""
        return max(self.engine_slots, self.engine_memory_adapters)


class MiddlewareSettings(SharedEngineSettings, EngineKeySettings):
    """How the engine's door brings adapters in and takes them out."""

    base_model: str = Field(default="smollm2-135m-instruct", description="Id of the base model it serves.")
    adapter_load_deadline_s: float = Field(
        default=20,
        gt=0,
        le=600,
        description="Longest wait of a request for its adapter; then `adapter_loading`, and the loading goes on.",
    )
    adapter_loads_max: int = Field(
        default=64, ge=1, le=10_000, description="Adapters that one engine brings in at the same time."
    )
    adapter_loads_per_tenant_max: int = Field(
        default=16, ge=1, le=10_000, description="Adapters of one tenant that one engine brings in at the same time."
    )
    engine_body_bytes_max: int = Field(
        default=8 << 20, ge=1024, description="Body of a request without `x-tenora-adapter`, read to find its model."
    )
    unload_abort_timeout_s: float = Field(
        default=10, gt=0, le=120, description="How long aborted requests may take to end before an unload goes on."
    )
    idle_adapter_sweep_interval_s: float = Field(
        default=5, gt=0, le=600, description="Between two looks at which adapters the front end may forget."
    )
    pinned_adapters_max: int = Field(default=10_000, ge=1, description="Names in one list of pinned adapters.")
    revoked_adapters_max: int = Field(
        default=100_000, ge=1, le=100_000, description="Adapters that an engine refuses; of more, those revoked last."
    )


class ReplicaSettings(AdapterTaskSettings, MiddlewareSettings, RedisSettings, TelemetrySettings):
    """Everything `python -m data_plane replica` reads, beside the S3 and cache settings of ``adapters``."""

    model_path: Path = Field(description="Folder of the base model's checkpoint.")
    engine_host: str = Field(
        default="127.0.0.1", description="Address the engine listens on: loopback or a private network."
    )
    engine_port: int = Field(default=8100, ge=1, le=65535, description="Port of the engine's own API.")
    engine_rank_max: int = Field(
        default=16, description="Largest rank served; vLLM allows 1, 8, 16, 32, 64, 128, 256, 320, 512."
    )
    engine_context_tokens: int = Field(default=2048, ge=64, le=1_000_000, description="Longest prompt plus output.")
    engine_sequences: int = Field(default=64, ge=1, le=4096, description="Requests in one batch (vLLM max_num_seqs).")
    engine_batched_tokens: int = Field(default=2048, ge=64, le=1_000_000, description="Tokens in one step.")
    engine_tool_parser: str = Field(
        default="hermes", description="How the base model spells tool calls (vLLM --tool-call-parser)."
    )
    engine_block_tokens: int = Field(
        default=32, ge=16, multiple_of=16, description="Tokens of one KV block; the CPU needs a multiple of 32."
    )
    engine_kv_gib: int = Field(
        default=1, ge=1, le=1024, description="KV cache on the CPU, in GiB; a GPU sizes its own."
    )
    engine_start_s: float = Field(
        default=240, gt=0, le=3600, description="Longest wait for the engine's first token after a start."
    )
    heartbeat_s: float = Field(default=1, gt=0, le=10, description="Between two published statuses.")
    status_ttl_s: float = Field(default=5, gt=0, le=60, description="A status older than this is gone.")
    probe_every_s: float = Field(
        default=5,
        gt=0,
        le=600,
        description="Between two one-token generations on an engine that shows no progress. With "
        "`TENORA_PROBE_TIMEOUT_S` and three heartbeats, the longest that requests go to an engine that hangs.",
    )
    probe_timeout_s: float = Field(
        default=10,
        gt=0,
        le=600,
        description="A probe slower than this has failed, unless the engine's counters moved meanwhile: one that hangs "
        "moves none, and one that is busy may answer late.",
    )
    probe_failures_max: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Failed probes in a row after which the engine is replaced; it gets no requests from the first on.",
    )
    drain_s: float = Field(default=30, ge=0, le=3600, description="Longest wait for running requests after SIGTERM.")
