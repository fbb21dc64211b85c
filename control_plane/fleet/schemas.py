"""Wire types of the fleet room."""

from datetime import datetime

import msgspec

from core.contracts.replicas import ReplicaState


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its agent last reported it. ``rank_max`` names its pool, ``memory_adapters`` is how many its host
    memory holds, and ``residency_version`` changes with where they lie. ``drain_requested`` is an admin's wish,
    ``state`` the agent's word.
    """

    id: str
    base_model: str
    state: ReplicaState
    drain_requested: bool
    block_tokens: int
    pages_total: int
    pages_free: int
    slots: int
    rank_max: int
    memory_adapters: int
    residency_version: int
    running_requests: int
    waiting_requests: int
    url: str
    heartbeat_at: datetime


class ResidencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapters lie where on a replica. ``slots`` has one entry each, null where it is empty; ``disk`` has
    digests, since several adapters may share one.
    """

    replica: str
    boot_id: str
    version: int
    slots: list[str | None]
    memory: list[str]
    disk: list[str]
