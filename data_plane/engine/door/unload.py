"""Taking an adapter out of the engine: refuse its name, drain, end what still runs, empty every tier from the slots
down. Idempotent: whatever interrupts it, asking again ends in the same state, and what it answers was looked at last.
"""

from typing import Final

import msgspec
import structlog

from data_plane.engine.door.adapter_door import AdapterDoor
from data_plane.engine.door.front_end import FrontEnd

_log: Final = structlog.get_logger()


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests ended by themselves and how many were ended, and what is left of the adapter where."""

    drained: int
    aborted: int
    in_slots: list[str]
    in_memory: list[str]
    on_disk: list[str]


async def unload(door: AdapterDoor, front_end: FrontEnd, name: str, drain_s: float) -> Unloaded:
    """Remove ``name`` from this replica. It stays refused until the whole set of refused names is told anew."""
    await refuse_names(door, door.revoked | {name})
    before = len(door.in_flight.ids(name))
    await door.in_flight.wait_idle(name, drain_s)
    running = door.in_flight.ids(name)
    if running:
        _log.warning("ending requests of a revoked adapter", adapter=name, requests=len(running))
        await front_end.abort(running)
        if not await door.in_flight.wait_idle(name, door.settings.door_abort_s):
            _log.error("requests of a revoked adapter do not end", adapter=name)
    truth = await front_end.unload(name)
    front_end.forget(name)
    on_disk = await door.disk.forget(name)
    return Unloaded(
        drained=before - len(running),
        aborted=len(running),
        in_slots=truth.in_slots(name),
        in_memory=truth.in_memory(name),
        on_disk=on_disk,
    )


async def refuse_names(door: AdapterDoor, names: frozenset[str]) -> None:
    """Replace the set of names that neither the door nor the worker serves."""
    door.revoked = names
    await door.worker.refuse(tuple(sorted(names)))
