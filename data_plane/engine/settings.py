"""Settings of one replica: the engine's shape, its address, and how its agent watches it."""

from pathlib import Path

from pydantic import Field

from core.settings import EngineKeySettings, RedisSettings, TelemetrySettings


class ReplicaSettings(RedisSettings, EngineKeySettings, TelemetrySettings):
    """Everything `python -m data_plane replica` reads, beside the S3 and cache settings of ``adapters``."""

    replica_id: str = Field(default="rep_local", pattern=r"^rep_[a-z0-9_]{1,40}$", description="Name of this replica.")
    base_model: str = Field(default="smollm2-135m-instruct", description="Id of the base model it serves.")
    model_path: Path = Field(description="Folder of the base model's checkpoint.")
    engine_host: str = Field(
        default="127.0.0.1", description="Address the engine listens on: loopback or a private network."
    )
    engine_port: int = Field(default=8100, ge=1, le=65535, description="Port of the engine's own API.")
    engine_slots: int = Field(default=8, ge=1, le=256, description="Adapters that one batch can mix (vLLM max_loras).")
    engine_memory_adapters: int = Field(
        default=64, ge=1, le=10_000, description="Adapters kept in host memory (vLLM max_cpu_loras)."
    )
    engine_rank_max: int = Field(
        default=16, description="Largest rank served; vLLM allows 1, 8, 16, 32, 64, 128, 256, 320, 512."
    )
    engine_context_tokens: int = Field(default=2048, ge=64, le=1_000_000, description="Longest prompt plus output.")
    engine_sequences: int = Field(default=64, ge=1, le=4096, description="Requests in one batch (vLLM max_num_seqs).")
    engine_batched_tokens: int = Field(default=2048, ge=64, le=1_000_000, description="Tokens in one step.")
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
        default=15, gt=0, le=600, description="Between two one-token generations on an engine that shows no progress."
    )
    probe_timeout_s: float = Field(default=20, gt=0, le=600, description="A probe slower than this has failed.")
    probe_failures_max: int = Field(
        default=2, ge=1, le=20, description="Failed probes in a row after which the engine is replaced."
    )
    drain_s: float = Field(default=30, ge=0, le=3600, description="Longest wait for running requests after SIGTERM.")
