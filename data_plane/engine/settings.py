"""Settings of one replica: the engine's size and address, how its agent watches it, and how adapters are loaded.

Settings of the object store and of the disk cache are in ``adapters.settings``.
"""

import socket
from pathlib import Path
from typing import Final, Self

from pydantic import DirectoryPath, Field, ValidationInfo, field_validator, model_validator

from adapters.settings import CacheSettings, ModelCacheSettings, StoreSettings
from core.contracts.replicas import CORDON_TARGET
from core.engine_settings import EngineSettings
from core.ids import new_id
from core.settings import EngineKeySettings, Fragment, RedisSettings, S3Settings, TelemetrySettings
from core.snapshot_settings import SnapshotVerifyingSettings

_OPTIONAL_DIGEST: Final = r"^([0-9a-f]{64})?$"


class AdapterTaskSettings(Fragment):
    """The agent's background tasks for adapters: revocations, canaries, prefetching, pins."""

    residency_scan_interval_s: float = Field(
        default=0.25, gt=0, le=10, description="Pause between two scans of where adapters are resident."
    )
    engine_control_timeout_s: float = Field(
        default=10, gt=0, le=120, description="Timeout of the agent's calls to the engine's `/tenora/v1` routes."
    )
    background_task_backoff_max_s: float = Field(
        default=5, gt=0, le=300, description="Longest pause before the agent retries a failed background task."
    )
    revocation_scan_interval_s: float = Field(
        default=1, gt=0, le=10, description="Pause between two reads of the published revocations."
    )
    revocation_drain_timeout_s: float = Field(
        default=30, ge=0, le=600, description="Time that running requests of a revoked adapter get before an abort."
    )
    revocation_unloads_max: int = Field(
        default=4, ge=1, le=64, description="Revoked adapters that are unloaded in parallel."
    )
    revocation_retry_max_s: float = Field(
        default=15, gt=0, le=600, description="Longest pause before a failed unload of a revoked adapter is retried."
    )
    revocation_start_timeout_s: float = Field(
        default=30, ge=0, le=600,
        description="Longest time that a starting replica waits until revoked adapters are deleted from its disk.",
    )  # fmt: skip
    revocation_receipt_ttl_s: int = Field(
        default=1_209_600, ge=3600, description="Lifetime of a revocation receipt in Redis until it is collected."
    )
    canary_load_timeout_s: float = Field(
        default=20,
        gt=0,
        le=600,
        description="Longest load of an adapter for its canary; after that the canary is retried later.",
    )
    canary_answer_timeout_s: float = Field(
        default=30, gt=0, le=600, description="Timeout of one answer in a canary run."
    )
    canary_answer_tokens: int = Field(
        default=16, ge=4, le=128, description="Tokens generated for the sample answer of a canary."
    )
    canary_rounds_max: int = Field(
        default=3, ge=1, le=10,
        description="Comparisons of an adapter with its base model before a canary fails because noise from other "
        "requests hides the difference.",
    )  # fmt: skip
    canary_start_adapters_max: int = Field(
        default=3, ge=0, le=100,
        description="Adapters of other replicas that a new one must run before it is ready; 0 for none.",
    )  # fmt: skip
    prefetch_queue_max: int = Field(
        default=64, ge=1, le=10_000,
        description="Adapters that may wait to be prefetched; a newer one replaces the oldest.",
    )  # fmt: skip
    prefetch_pause_s: float = Field(default=0.2, ge=0, le=60, description="Pause after each prefetched adapter.")
    prefetch_retry_after_s: float = Field(
        default=30, ge=0, le=3600,
        description="Shortest time between two prefetches of the same adapter, successful or not.",
    )  # fmt: skip
    prefetch_timeout_s: float = Field(default=60, gt=0, le=600, description="Timeout of one prefetch.")
    prefetch_evict_idle_s: float = Field(
        default=300, ge=0, description="A prefetch never evicts an adapter from memory that was used within this time."
    )
    prefetch_useful_within_s: float = Field(
        default=600, gt=0,
        description="A prefetched adapter counts as wasted when no request uses it within this time.",
    )  # fmt: skip
    pins_scan_interval_s: float = Field(
        default=5, gt=0, le=60, description="Pause between two reads of the adapters that plans pin to memory."
    )


class CostWindowSettings(Fragment):
    """How the agent reports its replica's time and steps to billing."""

    cost_window_s: float = Field(
        default=10, ge=1, le=600,
        description="Length of the windows in which a replica reports its time and its engine's steps for cost "
        "attribution. A change of the replica's state ends a window early.",
    )  # fmt: skip
    cost_window_poll_s: float = Field(
        default=0.25, gt=0, le=10, description="Pause between two looks at the state and the step counters."
    )
    cost_windows_unsent_max: int = Field(
        default=360, ge=1, le=100_000,
        description="Windows that an agent keeps while Redis does not answer; beyond it, the oldest are lost.",
    )  # fmt: skip
    cost_windows_stream_max: int = Field(
        default=100_000, ge=100, le=10_000_000,
        description="Windows that wait in Redis for billing; beyond it, the oldest are lost.",
    )  # fmt: skip


class EngineUsageSettings(Fragment):
    """How the agent reports to billing what its engine counted for requests that have ended."""

    engine_usage_interval_s: float = Field(
        default=1, gt=0, le=60, description="Pause between two reports of what requests that have ended used."
    )
    engine_usage_repeat_s: float = Field(
        default=60, ge=1, le=3600,
        description="After this time an agent sends each count a second time, in case Redis lost it.",
    )  # fmt: skip
    engine_usage_stream_max: int = Field(
        default=100_000, ge=100, le=10_000_000,
        description="Reports of ended requests that wait in Redis for billing; beyond it, the oldest are lost.",
    )  # fmt: skip


class SharedEngineSettings(Fragment, EngineSettings):
    """Settings that the agent, the middleware and the worker of one replica must agree on. The agent passes them to its
    engine in the environment.
    """

    replica_id: str = Field(
        default_factory=lambda: new_id("rep"),
        pattern=r"^rep_[a-z0-9_]{1,40}$",
        description="Id of this replica, stable over restarts: rep_ and up to 40 of a-z, 0-9 and _. Without one, each "
        "start makes a new one.",
    )
    engine_run_dir: Path = Field(
        default=Path(".tenora/run"),
        description="Folder in which replicas keep their sockets, locks and tables, and the time of the newest "
        "snapshot; close it to other users.",
    )

    @property
    def run_dir(self) -> Path:
        """The run folder of this replica."""
        return self.engine_run_dir.absolute() / self.replica_id

    @property
    def memory_adapters(self) -> int:
        """Adapters that fit in host memory: vLLM requires at least as many as slots."""
        return max(self.engine_slots, self.engine_memory_adapters)


class MiddlewareSettings(SharedEngineSettings, EngineKeySettings):
    """How the middleware in front of the engine loads and unloads adapters."""

    base_model: str = Field(
        default="smollm2-135m-instruct", description="Id of the base model that this replica serves."
    )
    adapter_load_deadline_s: float = Field(
        default=20,
        gt=0,
        le=600,
        description="Longest time that a request waits for its adapter. After that it gets `adapter_loading`; the load "
        "continues.",
    )
    adapter_loads_max: int = Field(
        default=64, ge=1, le=10_000, description="Adapters that one engine loads at the same time."
    )
    adapter_loads_per_tenant_max: int = Field(
        default=16, ge=1, le=10_000, description="Adapters of one tenant that one engine loads at the same time."
    )
    engine_body_bytes_max: int = Field(
        default=8 << 20, ge=1024,
        description="Largest body of a request without `x-tenora-adapter`; it is read to find the model.",
    )  # fmt: skip
    abort_report_timeout_s: float = Field(
        default=5,
        gt=0,
        le=120,
        description="How long an abort waits for the engine's report on how much of the prompt was computed. Without a "
        "report, the gateway charges the whole prompt. Keep it below the gateway's `TENORA_ABORT_S`.",
    )
    kv_report_interval_s: float = Field(
        default=1, gt=0, le=60,
        description="Pause between two reports of a stream's KV page-time so far. If a gateway dies, the last report "
        "is billed.",
    )  # fmt: skip
    engine_usage_hours_max: int = Field(
        default=100_000, ge=100, le=10_000_000,
        description="Pairs of tenant and hour for which an engine counts usage for reconciliation. Beyond it, further "
        "tenants are counted together.",
    )  # fmt: skip
    engine_usage_requests_max: int = Field(
        default=20_000, ge=100, le=1_000_000,
        description="Ended requests whose final counts an engine keeps by id for reconciliation; beyond it, the oldest "
        "are lost.",
    )  # fmt: skip
    unload_abort_timeout_s: float = Field(
        default=10, gt=0, le=120, description="Time that aborted requests get to end before an unload continues."
    )
    idle_adapter_sweep_interval_s: float = Field(
        default=5, gt=0, le=600,
        description="Pause between two sweeps that drop unused adapter names from vLLM and release their disk leases.",
    )  # fmt: skip
    pinned_adapters_max: int = Field(default=10_000, ge=1, description="Longest list of pinned adapters in one call.")
    revoked_adapters_max: int = Field(
        default=100_000, ge=1, le=100_000,
        description="Most adapters that an engine refuses; beyond it, only the most recently revoked are refused.",
    )  # fmt: skip


class DrainSettings(Fragment):
    """How long a replica that stops goes on, which its placer must know."""

    drain_s: float = Field(
        default=610,
        ge=0,
        le=7200,
        description="Longest wait for running requests after SIGTERM; a second SIGTERM ends it. Keep it above the "
        "gateway's `TENORA_REQUEST_S`.",
    )


class ReplicaSettings(
    AdapterTaskSettings,
    CostWindowSettings,
    DrainSettings,
    EngineUsageSettings,
    MiddlewareSettings,
    RedisSettings,
    SnapshotVerifyingSettings,
    TelemetrySettings,
):
    """Everything `python -m data_plane replica` reads, beside the S3 and cache settings of ``adapters``."""

    model_path: DirectoryPath | None = Field(
        default=None, description="Folder of the base model's checkpoint; without it, `TENORA_MODEL_DIGEST` is needed."
    )
    model_digest: str = Field(
        default="",
        validate_default=True,
        pattern=_OPTIONAL_DIGEST,
        description="Digest of base weights in the object store, which `tenora base-models push` prints. The replica "
        "downloads them.",
    )
    pool: str = Field(default="", max_length=63, description="Name of the pool that the replica belongs to.")
    pool_revision: str = Field(
        default="",
        validate_default=True,
        pattern=_OPTIONAL_DIGEST,
        description="Digest of the pool revision that the replica must run. If its weights, its engine or a setting of "
        "the engine differ, it ends with `revision_mismatch`. Empty: anything.",
    )
    engine_host: str = Field(
        default="127.0.0.1",
        description="Address on which the engine listens and which the replica publishes to gateways. Gateways must be "
        "able to reach it, so 0.0.0.0 does not work: use loopback or a private address of this machine.",
    )
    engine_port: int = Field(default=8100, ge=1, le=65535, description="Port of the engine's HTTP API.")
    engine_start_s: float = Field(
        default=240, gt=0, le=3600, description="Longest time from the engine's start to its first token."
    )
    heartbeat_s: float = Field(
        default=1, gt=0, le=10, description="Pause between two published statuses of the replica."
    )
    store_probe_interval_s: float = Field(
        default=5, gt=0, le=600, description="Pause between two probes of whether a replica can read the object store."
    )
    status_ttl_s: float = Field(
        default=5, gt=0, le=60, description="Lifetime of a published status; without a newer one the replica is gone."
    )
    probe_every_s: float = Field(
        default=5,
        gt=0,
        le=600,
        description="Pause between two one-token probes of an engine that shows no progress. Gateways send requests to "
        "a hanging engine for at most this time plus `TENORA_PROBE_TIMEOUT_S` plus three heartbeats.",
    )
    batch_token_ms_max: float = Field(
        default=100, ge=0,
        description="A mean time between two tokens that is fast enough for other requests beside batch. So few batch "
        "requests run beside them that it is kept, or one and a half times the engine's fastest where that is more.",
    )  # fmt: skip
    probe_timeout_s: float = Field(
        default=10,
        gt=0,
        le=600,
        description="A probe slower than this has failed, unless the engine's token counters moved meanwhile: a busy "
        "engine may answer late, and a hanging engine moves no counter.",
    )
    probe_failures_max: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Consecutive failed probes after which the engine is replaced. It gets no requests after the first "
        "failure.",
    )
    node: str = Field(
        default_factory=socket.gethostname,
        pattern=rf"^{CORDON_TARGET}$",
        description="Name of the machine, as operators see it: up to 253 of A-Z, a-z, 0-9, '.', '_' and '-'.",
    )
    replica_copy: str = Field(
        default="", max_length=253, description="Name that a placer has for this replica, such as that of its pod."
    )

    @field_validator("pool_revision")
    @classmethod
    def _belongs_to_a_pool(cls, revision: str, found: ValidationInfo) -> str:
        if bool(revision) != bool(found.data.get("pool")):
            raise ValueError("TENORA_POOL, TENORA_POOL_REVISION: set both or none")
        return revision

    @field_validator("model_digest")
    @classmethod
    def _names_one_model(cls, digest: str, found: ValidationInfo) -> str:
        path = found.data.get("model_path")
        if path is None and not digest and "model_path" in found.data:  # otherwise the path is refused already
            described = cls.model_fields["model_path"].description
            raise ValueError(f"TENORA_MODEL_PATH is not set: {described}")
        if path is not None and digest:
            raise ValueError("TENORA_MODEL_PATH, TENORA_MODEL_DIGEST: set only one of them")
        return digest

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        """A status must be published again before it expires; otherwise gateways lose a healthy replica."""
        self.require_shorter("heartbeat_s", "status_ttl_s")
        return self


REPLICA_PARTS: Final = (ReplicaSettings, S3Settings, StoreSettings, CacheSettings, ModelCacheSettings)
"""What the agent and its engine read."""
