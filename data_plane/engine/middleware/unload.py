"""Taking an adapter out of the engine: refuse it, drain, end what still runs, empty every tier from the slots down.
Idempotent: whatever interrupts it, asking again ends in the same state, and what it answers was looked at last.
"""

from typing import Final

import structlog

from core.adapter_names import adapter_of, digest_of
from core.errors import Conflict
from data_plane.engine.control_protocol import Unloaded
from data_plane.engine.middleware.adapter_requests import AdapterRequests
from data_plane.engine.middleware.vllm_frontend import VllmFrontend

_log: Final = structlog.get_logger()


class RevocationLifted(Conflict):
    """The adapter may be served again: what was begun for its revocation has stopped."""

    default_code = "revocation_lifted"


async def unload(door: AdapterRequests, front_end: VllmFrontend, name: str, drain_s: float) -> Unloaded:
    """Remove ``name`` from this replica. Its adapter stays refused until the whole set of refused ones is told anew.

    Raises ``RevocationLifted`` when that happens during a wait: requests that came since then are let live.
    """
    await refuse_adapters(door, door.refused.adapters | {adapter_of(name)})
    before = len(door.in_flight.ids(name))
    idle = await door.in_flight.wait_idle(name, drain_s)
    _check_revoked(door, name)
    running = door.in_flight.ids(name)
    if not idle:
        _log.warning("ending requests of a revoked adapter", adapter=name, requests=len(running))
        if running:  # otherwise a prefetch, which ends by itself
            await front_end.abort(running)
        idle = await door.in_flight.wait_idle(name, door.settings.unload_abort_timeout_s)
        _check_revoked(door, name)
        if not idle:
            _log.error("requests of a revoked adapter do not end", adapter=name)
    truth = await door.take_out(name, front_end, idle=idle)
    holders = await door.disk.forget(name)
    left = () if holders or not await door.disk.has(name) else (digest_of(name),)
    return Unloaded(
        drained=before - len(running),
        aborted=len(running),
        in_slots=tuple(held for held in truth.in_slots if held == name),
        in_memory=tuple(truth.in_memory & {name}),
        on_disk=left,
        holders=tuple(sorted(holders)),
    )


async def refuse_adapters(door: AdapterRequests, adapters: frozenset[str]) -> None:
    """Replace the set of adapters that neither the door nor the worker serves."""
    door.refused.adapters = adapters
    await door.worker.refuse(tuple(sorted(adapters)))


def _check_revoked(door: AdapterRequests, name: str) -> None:
    if name not in door.refused:
        raise RevocationLifted(f"adapter {name} is served again; nothing more of it is ended")
