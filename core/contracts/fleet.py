"""What placers keep running. The fleet process writes it, one entry for each pool; a placer reads it.

A placer starts and stops copies, and sets their environment; it decides nothing. An entry that is missing says nothing:
what runs goes on.
"""

import msgspec
import structlog


class WantedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """So many ``replicas`` of one revision of the pool. ``environment`` are their variables beside the secrets and
    addresses of their machine.
    """

    number: int
    replicas: int
    environment: dict[str, str]


class WantedPool(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's revisions with replicas, the one in force first."""

    pool: str
    revisions: tuple[WantedRevision, ...]


def read_wanted(encoded: bytes) -> WantedPool | None:
    """An entry as Redis has it; None, which is logged, for one that only a newer version understands."""
    try:
        return msgspec.json.decode(encoded, type=WantedPool)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        structlog.get_logger().error("entry of a wanted pool unreadable", error=str(error))
        return None
