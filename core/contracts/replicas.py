"""The state that replicas publish: heartbeat, adapter residency and token counters. Routing decisions are not here.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Literal

import msgspec

ReplicaState = Literal["starting", "ready", "draining", "unhealthy"]


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a replica's agent. ``url`` is the engine's address, which only gateways can reach. ``reason``
    says what is wrong with it, and the fix; it is empty when nothing is.
    """

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
    reason: str = ""


Tier = Literal["slot", "memory", "disk", "store"]
"""Where an adapter is stored, the fastest tier first."""


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapters one replica holds in which tier, as its engine reports them. ``slots`` has one entry per slot.
    ``disk`` has digests, because the engine names of several adapters may share a digest.
    """

    replica_id: str
    boot_id: str
    version: int
    slots: tuple[str | None, ...]
    memory: tuple[str, ...]
    disk: tuple[str, ...]


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and KV page-milliseconds that one engine process counted since its start, and the part that belongs to the
    agent's own requests. Cached prompt tokens are of tenants: prompts of probes are shorter than a block.

    ``kv_page_ms`` contains every request that the engine has scheduled, also aborted ones and those that still run. The
    events of an engine whose pages were measured therefore add up to at most the tenants' part.
    """

    prompt_tokens: int
    generation_tokens: int
    probe_prompt_tokens: int
    probe_generation_tokens: int
    cached_prompt_tokens: int = 0
    kv_page_ms: int = 0
    probe_kv_page_ms: int = 0

    @property
    def tenant_tokens(self) -> int:
        """Tokens of tenants: all tokens minus those of probes."""
        return (self.prompt_tokens - self.probe_prompt_tokens) + (self.generation_tokens - self.probe_generation_tokens)

    @property
    def tenant_kv_page_ms(self) -> int:
        """KV page-milliseconds of tenants: all of them minus those of the agent's own requests."""
        return self.kv_page_ms - self.probe_kv_page_ms
