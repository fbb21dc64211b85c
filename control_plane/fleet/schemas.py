"""Wire types of the fleet room."""

from datetime import datetime

import msgspec

from core.contracts.replicas import ReplicaState


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its agent last reported it. ``rank_max`` identifies its pool, ``memory_adapters`` is the number of
    adapters in its host memory, and ``residency_version`` changes whenever an adapter moves between tiers. An admin
    sets ``drain_requested``; the agent reports ``state``, and in ``reason`` what is wrong with the replica.
    """

    id: str
    base_model: str
    state: ReplicaState
    reason: str | None
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


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to drain. ``force`` also drains the last ready replica that serves a base model or a rank class."""

    force: bool = False


class ResidencyView(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters in each tier of a replica. ``slots`` has one entry for each slot, null for an empty one. ``disk``
    lists digests, because several adapters may share one.
    """

    replica: str
    boot_id: str
    version: int
    slots: list[str | None]
    memory: list[str]
    disk: list[str]
