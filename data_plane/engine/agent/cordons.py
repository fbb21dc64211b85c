"""Reads whether an admin keeps requests from this replica or from its node.

Fails open: while Redis is unavailable the last answer stays.
"""

from core.contracts.replicas import Cordon
from data_plane.engine.agent.snapshot_reader import SnapshotReader, SnapshotSource
from data_plane.engine.settings import ReplicaSettings


class Cordons:
    """``run_once`` is repeated. ``reason`` is empty when the replica may serve."""

    def __init__(self, settings: ReplicaSettings, published: SnapshotSource) -> None:
        self._fields = (f"replica/{settings.replica_id}", f"node/{settings.node}")
        self._published = SnapshotReader(published, "cordons", Cordon)
        self.reason = ""

    async def run_once(self) -> None:
        """Read the cordons when something was published. Raises SnapshotMissing or redis.RedisError."""
        found = await self._published.changed()
        if found is not None:
            mine = (f"{field} is cordoned: {found[field].reason}" for field in self._fields if field in found)
            self.reason = next(mine, "")
