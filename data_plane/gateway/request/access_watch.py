"""Ends running requests whose API key was revoked or whose tenant was suspended. What they used is billed.

Fails open: without a new snapshot this process does not know about a revocation and cannot act on it.
"""

import asyncio
from collections.abc import Mapping

import structlog

from core.errors import AppError, Forbidden, Unauthenticated
from data_plane.gateway import metrics
from data_plane.gateway.settlement.settler import Running
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.snapshot import Snapshot, Tables

_log = structlog.get_logger()


class AccessWatch:
    """Checks the running requests every ``every_s``; a request may continue for that long after it lost access."""

    def __init__(self, running: Mapping[str, Running], snapshot: Snapshot, *, every_s: float) -> None:
        self._running = running
        self._snapshot = snapshot
        self._every_s = every_s
        self._key_ids: frozenset[str] = frozenset()
        self._seen = ("", -1)  # epoch and generation of the key ids

    async def run_forever(self) -> None:
        """Check every ``every_s`` until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self.run_once()

    def run_once(self) -> None:
        """End each running request that has lost access."""
        tables = self._snapshot.tables
        if tables is None or not self._running:
            return
        seen = (self._snapshot.epoch, self._snapshot.generation)
        if seen != self._seen:
            self._key_ids = frozenset(grant.key_id for grant in tables.keys.values())
            self._seen = seen
        for request_id, running in list(self._running.items()):
            if (error := self._access_error(running.caller, tables)) is not None:
                metrics.ACCESS_REVOKED_REQUESTS.inc()
                _log.info("running request lost access", request_id=request_id, code=error.code)
                running.cut_off(error)

    def _access_error(self, caller: Caller, tables: Tables) -> AppError | None:
        tenant = tables.tenants.get(caller.tenant.tenant_id)
        if caller.key.key_id not in self._key_ids or tenant is None:
            return Unauthenticated("The API key was revoked, or expired, while the answer was generated.")
        if tenant.status != "active":
            return Forbidden("This tenant was suspended while the answer was generated.", code="tenant_suspended")
        return None
