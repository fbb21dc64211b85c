"""Wire types of the fleet room."""

from datetime import datetime

import msgspec

from core.contracts import ReplicaState


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its agent last reported it. ``drain_requested`` is an admin's wish, ``state`` the agent's word."""

    id: str
    base_model: str
    state: ReplicaState
    drain_requested: bool
    block_tokens: int
    pages_total: int
    pages_free: int
    slots: int
    running_requests: int
    waiting_requests: int
    resident: list[str]
    url: str
    heartbeat_at: datetime
