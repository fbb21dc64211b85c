"""JSON bodies of the middleware's control routes, ``/tenora/v1``. The replica's agent, the doctor and gateways call
them.

The routes themselves are in ``middleware.control_routes``, the agent's client in ``agent.control_client``.
"""

from typing import Literal

import msgspec

from core.adapter_names import adapter_of
from core.contracts.engine_usage import EndedRequest, EngineUsageHour
from core.contracts.replicas import Tier
from core.contracts.usage import GenerationProgress


class PrefetchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Load an adapter up to a tier. Loads are limited for each ``tenant``; without a tenant, for each adapter."""

    name: str
    tier: Literal["disk", "memory"] = "memory"
    tenant: str | None = None


class Prefetched(msgspec.Struct, frozen=True):
    """The tier in which the adapter was found, and how long its load took."""

    tier: Tier
    load_ms: int


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unload an adapter. Its running requests get ``drain_s`` before they are aborted."""

    name: str
    drain_s: float = 0.0


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of the adapter that ended by themselves and that were aborted, and the copies that are left.

    ``holders`` are the other leaseholders of its files, for which the files stay: engine names, or "another process" of
    this machine. ``on_disk`` lists files that are there without such a lease.
    """

    drained: int
    aborted: int
    in_slots: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


class PinsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete set of engine names to keep in host memory."""

    names: tuple[str, ...]


class Pinned(msgspec.Struct, frozen=True):
    """Pinned names that are not in host memory yet."""

    missing: tuple[str, ...]


class RevokedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete set of adapter ids to refuse, with all their revisions."""

    adapters: tuple[str, ...]


class RevokedCount(msgspec.Struct, frozen=True):
    """The number of adapters that are refused now."""

    adapters: int


class ProgressBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests of a gateway whose answers come in one piece, by the ids that vLLM knows them by."""

    request_ids: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True):
    """What has been generated, by request id. A request without a token is left out."""

    requests: dict[str, GenerationProgress]


class EndedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for what was counted after this version; 0 asks for everything that is still known. ``at_once`` also counts
    requests that have ended within the last second, because the engine is about to stop.
    """

    after: int = 0
    at_once: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine counted for requests that have ended, up to ``version``."""

    version: int
    hours: tuple[EngineUsageHour, ...]
    requests: tuple[EndedRequest, ...]


class StoreState(msgspec.Struct, frozen=True):
    """Why this engine cannot read the object store, with the fix; None when it can."""

    unreadable: str | None


class SlotContents(msgspec.Struct, frozen=True):
    """One slot of the engine: the adapter in it, and whether all its weights are zero."""

    index: int
    lora_int_id: int | None
    name: str | None
    zeroed: bool


class MemoryContents(msgspec.Struct, frozen=True):
    """One adapter in the engine's host memory. ``name`` is None when the engine no longer knows the name."""

    lora_int_id: int
    name: str | None


class EngineInventory(msgspec.Struct, frozen=True, kw_only=True):
    """Where adapters are, as the engine itself finds by inspecting its tables and tensors. ``disk`` lists digests,
    ``revoked`` adapter ids, the other fields engine names. ``slots``, ``memory`` and ``staged`` come from the worker,
    the rest from the middleware.
    """

    slots: tuple[SlotContents, ...]
    memory: tuple[MemoryContents, ...]
    names: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    disk: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()

    @property
    def in_slots(self) -> tuple[str | None, ...]:
        """The engine name in each slot, by index."""
        by_index = {slot.index: slot.name for slot in self.slots}
        return tuple(by_index.get(index) for index in range(max(by_index, default=-1) + 1))

    @property
    def in_memory(self) -> frozenset[str]:
        """Engine names in host memory, registered with vLLM or staged."""
        return frozenset(each.name for each in self.memory if each.name is not None) | frozenset(self.staged)

    @property
    def known(self) -> frozenset[str]:
        """Every engine name that a tier above the disk, or vLLM's front end, still has."""
        return self.in_memory | frozenset(name for name in self.in_slots if name is not None) | frozenset(self.names)

    def refuses(self, name: str) -> bool:
        """Whether the middleware refuses requests for this engine name."""
        return adapter_of(name) in self.revoked
