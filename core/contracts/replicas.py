"""The state that replicas publish: heartbeat and adapter residency. Routing decisions are not here.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Literal

import msgspec

ReplicaState = Literal["starting", "ready", "draining", "unhealthy"]


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a replica's agent. ``url`` is the engine's address, which only gateways can reach. ``reason``
    says what is wrong with it, and the fix; it is empty when nothing is. ``counted_tokens`` are those of all requests
    since the engine's start, by its own metrics: an engine that works counts more and more.
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
    counted_tokens: int = 0
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
