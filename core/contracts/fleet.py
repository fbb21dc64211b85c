"""What placers keep running. The fleet process writes it, one entry for each pool; placers read it, and gateways for
what an empty pool may get.

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
    """The pool's revisions with replicas, the one in force first. ``start_s`` is how long its replicas last took to
    start, 0 before any has; ``grew_ms`` is when more replicas were last wanted, in Unix milliseconds.
    """

    pool: str
    revisions: tuple[WantedRevision, ...]
    base_model: str = ""
    rank_max: int = 0
    replicas_max: int = 0
    start_s: int = 0
    grew_ms: int = 0


def read_wanted(encoded: bytes) -> WantedPool | None:
    """An entry as Redis has it; None, which is logged, for one that only a newer version understands."""
    try:
        return msgspec.json.decode(encoded, type=WantedPool)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        structlog.get_logger().error("entry of a wanted pool unreadable", error=str(error))
        return None
