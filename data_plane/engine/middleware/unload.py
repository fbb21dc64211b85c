"""Unloads a revoked adapter from the engine: refuse it, drain its requests, abort the rest, empty every tier from the
slots down.

Idempotent: after any interruption the same call leads to the same state. The answer is the state found at the end.
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
    """The adapter may be served again, so its unload has stopped."""

    default_code = "revocation_lifted"


async def unload(adapters: AdapterRequests, front_end: VllmFrontend, name: str, drain_s: float) -> Unloaded:
    """Remove ``name`` from this replica. Its adapter stays refused until the complete set of revoked adapters is
    replaced.

    Raises ``RevocationLifted`` when that happens during a wait: requests that arrived since then are not aborted.
    """
    await set_revoked(adapters, adapters.revoked.adapters | {adapter_of(name)})
    before = len(adapters.in_flight.ids(name))
    idle = await adapters.in_flight.wait_idle(name, drain_s)
    _require_revoked(adapters, name)
    running = adapters.in_flight.ids(name)
    if not idle:
        _log.warning("aborting requests of a revoked adapter", adapter=name, requests=len(running))
        if running:  # otherwise only a prefetch runs, which ends by itself
            await front_end.abort(running)
        idle = await adapters.in_flight.wait_idle(name, adapters.settings.unload_abort_timeout_s)
        _require_revoked(adapters, name)
        if not idle:
            _log.error("requests of a revoked adapter do not end after an abort", adapter=name)
    inventory = await adapters.evict(name, front_end, idle=idle)
    holders = await adapters.disk.evict(name)
    left = () if holders or not await adapters.disk.has(name) else (digest_of(name),)
    return Unloaded(
        drained=before - len(running),
        aborted=len(running),
        in_slots=tuple(slot for slot in inventory.in_slots if slot == name),
        in_memory=tuple(inventory.in_memory & {name}),
        on_disk=left,
        holders=tuple(sorted(holders)),
    )


async def set_revoked(adapters: AdapterRequests, revoked: frozenset[str]) -> None:
    """Replace the set of adapter ids that the middleware and the worker refuse."""
    adapters.revoked.adapters = revoked
    await adapters.worker.revoke(tuple(sorted(revoked)))


def _require_revoked(adapters: AdapterRequests, name: str) -> None:
    if name not in adapters.revoked:
        raise RevocationLifted(f"the revocation of adapter {name} was lifted; its unload has stopped")
