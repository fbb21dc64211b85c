"""What replicas publish about themselves: heartbeat, adapter residency and token counters.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Literal

import msgspec

ReplicaState = Literal["starting", "ready", "draining", "unhealthy"]


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's heartbeat. ``url`` is the engine's own address, reachable by gateways only."""

    id: str
    url: str
    base_model: str
    state: ReplicaState
    boot_id: str
    block_tokens: int
    pages_total: int
    pages_free: int
    slots: int
    running_requests: int
    waiting_requests: int
    heartbeat_ms: int
    rank_max: int = 16
    memory_adapters: int = 0
    residency_version: int = 0


Tier = Literal["slot", "memory", "disk", "store"]
"""Where an adapter lies, the fastest first."""


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapters lie where on one replica, by the engine's own account. ``slots`` has one entry per slot; ``disk``
    has digests, since engine names of several adapters may share one.
    """

    replica_id: str
    boot_id: str
    version: int
    slots: tuple[str | None, ...]
    memory: tuple[str, ...]
    disk: tuple[str, ...]


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens one engine process has counted since it started, and how many of them were the agent's own probes."""

    prompt_tokens: int
    generation_tokens: int
    probe_prompt_tokens: int
    probe_generation_tokens: int

    @property
    def tenant_tokens(self) -> int:
        """Tokens that belong to tenants."""
        return (self.prompt_tokens - self.probe_prompt_tokens) + (self.generation_tokens - self.probe_generation_tokens)
