"""Changes of the published snapshot, and the heartbeat in which a gateway reports the snapshot that it applied.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Literal

import msgspec

SnapshotKind = Literal[
    "keys", "tenants", "adapters", "base_models", "pools", "groups", "revocations", "pins", "cordons",
]  # fmt: skip


class SnapshotChange(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the change stream. ``value`` is the encoded struct, or None if the field was removed. Its field
    ``signature`` in the stream is over these bytes, so that a replayed or altered change is refused. ``kind`` is a
    SnapshotKind, or one that only newer control planes know.

    A gateway that sees another epoch, or a generation that does not follow its own, reads the whole snapshot again.
    """

    epoch: str
    generation: int
    kind: str
    field: str
    value: str | None
    published_at_ms: int


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a gateway process: the snapshot that its decisions use from now on. A gateway without a
    current heartbeat begins no request: it may not know of a revocation.
    """

    id: str
    epoch: str
    generation: int
    heartbeat_ms: int
