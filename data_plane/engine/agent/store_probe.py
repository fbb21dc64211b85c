"""Whether this replica's engine can read the object store, asked of the engine itself: it has the credentials.

A replica becomes ready after the store was readable once. From then on it stays ready: the base model and the adapters
that it holds need no store.
"""

import structlog

from data_plane.engine.agent.control_client import ControlClient

_log = structlog.get_logger()


class StoreProbe:
    """``reason`` says why the store could not be read at the last probe, with the fix; it is empty when it could."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self.was_readable = False
        self.reason = "the object store was not probed yet"

    async def run_once(self) -> None:
        """Ask once. Raises what ``ControlClient`` raises."""
        reason = await self._control.why_store_unreadable() or ""
        if reason and reason != self.reason:
            _log.warning("object store not readable", reason=reason, ready=self.was_readable)
        self.reason = reason
        self.was_readable = self.was_readable or not reason
