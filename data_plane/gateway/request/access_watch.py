"""Ends requests whose key was revoked, or whose tenant was suspended, while they run; what they used is billed.

Fails open for as long as the snapshot stands still: what is not known cannot be acted upon.
"""

import asyncio
from collections.abc import Mapping

import structlog

from core.errors import AppError, Forbidden, Unauthenticated
from data_plane.gateway import metrics
from data_plane.gateway.settlement.settler import Hold
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.snapshot import Snapshot, Tables

_log = structlog.get_logger()


class AccessWatch:
    """Looks at what runs every ``every_s``; it may run on for that long."""

    def __init__(self, live: Mapping[str, Hold], snapshot: Snapshot, *, every_s: float) -> None:
        self._live = live
        self._snapshot = snapshot
        self._every_s = every_s
        self._key_ids: frozenset[str] = frozenset()
        self._seen = ("", -1)  # epoch and generation of the key ids

    async def run_forever(self) -> None:
        """Look again and again, for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            self.look()

    def look(self) -> None:
        """End what may not run any more."""
        tables = self._snapshot.tables
        if tables is None or not self._live:
            return
        seen = (self._snapshot.epoch, self._snapshot.generation)
        if seen != self._seen:
            self._key_ids = frozenset(grant.key_id for grant in tables.keys.values())
            self._seen = seen
        for hold in list(self._live.values()):
            if hold.running is not None and (error := self._objection(hold.running.caller, tables)) is not None:
                metrics.ACCESS_REVOKED_REQUESTS.inc()
                _log.info("request is cut off", request_id=hold.request_id, code=error.code)
                hold.running.cut_off(error)

    def _objection(self, caller: Caller, tables: Tables) -> AppError | None:
        tenant = tables.tenants.get(caller.tenant.tenant_id)
        if caller.key.key_id not in self._key_ids or tenant is None:
            return Unauthenticated("The API key was revoked while the answer was being made.")
        if tenant.status != "active":
            return Forbidden("This tenant was suspended while the answer was being made.", code="tenant_suspended")
        return None
