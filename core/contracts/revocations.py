"""Revocations of adapters, and the receipts by which replicas confirm the removal. The order of the steps is not here.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Literal

import msgspec


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that every replica must remove from every tier. Published under the revocation's id until all replicas
    have confirmed, and for some time after that for replicas that come back. ``engine_names`` are all its revisions.
    """

    id: str
    adapter_id: str
    base_model: str
    engine_names: tuple[str, ...]


class RevocationReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's confirmation that it holds nothing of a revoked adapter, with the tiers as it found them.
    ``aborted_requests`` counts requests that were still running at the end of the drain timeout.
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
