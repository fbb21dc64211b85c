"""How the published snapshot changes, and which snapshot each gateway has applied.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Literal

import msgspec

SnapshotKind = Literal["keys", "tenants", "adapters", "base_models", "revocations", "pins"]


class SnapshotChange(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the change stream. ``value`` is the encoded struct, or None where the field was removed.

    A gateway that sees another epoch, or a generation that does not follow its own, reads everything again.
    """

    epoch: str
    generation: int
    kind: SnapshotKind
    field: str
    value: str | None


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway process's heartbeat: the snapshot by which it decides from now on. One that is cut off from Redis can
    reserve nothing, so a gateway without a heartbeat serves nothing.
    """

    id: str
    epoch: str
    generation: int
    heartbeat_ms: int
