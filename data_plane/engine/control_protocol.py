"""What the door's own routes, ``/tenora/v1``, take and answer, as JSON. The door is in ``door``; its agent and the
doctor ask it.
"""

from typing import Literal

import msgspec

from core.adapter_names import adapter_of
from core.contracts.replicas import Tier


class PrefetchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which adapter to bring how far up. Downloads take turns by ``tenant``; without one, by adapter."""

    name: str
    tier: Literal["disk", "memory"] = "memory"
    tenant: str | None = None


class Prefetched(msgspec.Struct, frozen=True):
    """Where an adapter lay before, and how long bringing it took."""

    tier: Tier
    load_ms: int


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which adapter to take out, and how long its requests may go on."""

    name: str
    drain_s: float = 0.0


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of an adapter ended by themselves and how many were ended, and what is left of it where.

    ``holders`` are who else has a right to its files, so that they stay: engine names, or "another process" of this
    machine. ``on_disk`` is what is there without such a right.
    """

    drained: int
    aborted: int
    in_slots: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


class PinsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole set of engine names to keep in host memory."""

    names: tuple[str, ...]


class Pinned(msgspec.Struct, frozen=True):
    """Those that are not in host memory yet."""

    missing: tuple[str, ...]


class RevokedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole set of adapter ids to refuse, every revision of them."""

    adapters: tuple[str, ...]


class Refusing(msgspec.Struct, frozen=True):
    """How many adapters are refused now."""

    adapters: int


class SlotContents(msgspec.Struct, frozen=True):
    """One slot of the engine: which adapter is in it, and whether its weights are all zero."""

    index: int
    lora_int_id: int | None
    name: str | None
    zeroed: bool


class MemoryContents(msgspec.Struct, frozen=True):
    """One adapter in the engine's host memory. ``name`` is None where the engine has forgotten whose it is."""

    lora_int_id: int
    name: str | None


class EngineInventory(msgspec.Struct, frozen=True, kw_only=True):
    """Where adapters lie, as the engine itself says. ``disk`` has digests, ``revoked`` adapter ids, the others engine
    names. The worker knows ``slots``, ``memory`` and ``staged``, the door the rest.
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
        """Engine names in host memory, registered or ready to be."""
        return frozenset(each.name for each in self.memory if each.name is not None) | frozenset(self.staged)

    @property
    def known(self) -> frozenset[str]:
        """Every engine name that any tier above the disk, or the front end, still has."""
        return self.in_memory | frozenset(name for name in self.in_slots if name is not None) | frozenset(self.names)

    def refuses(self, name: str) -> bool:
        """Whether the door lets no request for this engine name in."""
        return adapter_of(name) in self.revoked
