"""The state that replicas publish: heartbeat and adapter residency. Routing decisions are not here.

msgspec encodes these structs as JSON. Readers ignore fields and states that they do not know, so that two versions can
run together.
"""

from typing import Final, Literal

import msgspec
import structlog

OUTSIDE: Final = "prv_"
"""The beginning of the id by which an outside provider's model stands among the replicas: it is the provider's id."""

ReplicaState = Literal["starting", "ready", "draining", "unhealthy", "failed"]
"""``failed`` is the last word of an agent whose engine did not start or was lost."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a replica's agent. ``url`` is the engine's address, which only gateways can reach. ``reason``
    says what is wrong with it, and the fix; it is empty when nothing is. ``counted_tokens`` are those of all requests
    since the engine's start, by its own metrics: an engine that works counts more and more. ``state`` is a
    ReplicaState, or one that only newer agents know. ``node`` and ``copy`` are the names that the machine and the
    placer have for this replica. ``run_dir_id`` identifies the folder whose lock its agent holds. ``revision`` is the
    digest of the pool revision that it runs or failed to run; both are empty for a replica of no pool. The
    engine runs at most ``sequences`` at once. ``batch_requests_max`` requests run fast enough for others beside batch.
    0 in either is unknown.
    """

    id: str
    url: str
    base_model: str
    state: str
    boot_id: str
    block_tokens: int
    pages_total: int
    pages_free: int
    slots: int
    running_requests: int
    waiting_requests: int
    heartbeat_ms: int
    counted_tokens: int = 0
    rank_max: int = 16
    memory_adapters: int = 0
    residency_version: int = 0
    reason: str = ""
    node: str = ""
    copy: str = ""
    run_dir_id: str = ""
    pool: str = ""
    revision: str = ""
    sequences: int = 0
    batch_requests_max: int = 0

    @property
    def has_engine(self) -> bool:
        """Whether an engine has published its size: it has started, and it may hold adapters."""
        return self.pages_total > 0


def read_status(encoded: bytes) -> ReplicaStatus | None:
    """A replica's status as its agent published it. None for one that cannot be read, which is logged."""
    try:
        return _status.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        structlog.get_logger().error("replica status unreadable", error=str(error))
        return None


_status = msgspec.json.Decoder(ReplicaStatus)

CordonKind = Literal["replica", "node"]
CORDON_TARGET: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
"""The regular expression of a replica's id and of a node's name, without its ends."""


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    """An admin keeps requests from a replica or a node. It is published as ``<kind>/<id or name>``."""

    reason: str


Tier = Literal["slot", "memory", "disk", "store"]
"""Where an adapter is stored, the fastest tier first."""


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapters one replica holds in which tier, as its engine reports them. ``slots`` has one entry per slot.
    ``disk`` has digests, because the engine names of several adapters may share a digest.
    """

    replica_id: str
    boot_id: str
    version: int
    slots: tuple[str | None, ...]
    memory: tuple[str, ...]
    disk: tuple[str, ...]
