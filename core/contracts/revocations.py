"""How adapters are revoked, and how each replica confirms that it has removed them.

Values are encoded as JSON with msgspec. Readers ignore unknown fields, so that a new control plane can talk to an old
gateway and the reverse.
"""

from typing import Literal

import msgspec


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """What every replica must forget, in every tier; published under its own id until all have, and a while longer for
    replicas that come back. The engine names are all revisions of one adapter.
    """

    id: str
    adapter_id: str
    base_model: str
    engine_names: tuple[str, ...]


class RevocationReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's word that it holds nothing of a revoked adapter any more, and what it looked at to say so.
    ``aborted_requests`` were still running when the drain's time was up.
    """

    revocation_id: str
    replica_id: str
    boot_id: str
    state: Literal["draining", "removed"]
    drained_requests: int
    aborted_requests: int
    in_slots: tuple[str, ...]
    in_memory: tuple[str, ...]
    on_disk: tuple[str, ...]
    at_ms: int
