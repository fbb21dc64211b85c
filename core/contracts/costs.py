"""What a replica's agent reports about its time and its engine's steps, for billing's cost attribution.

msgspec encodes these structs as JSON. Readers ignore unknown fields, so that two versions can run together.
"""

from typing import Annotated, Final, Literal

import msgspec

AMOUNT_MAX: Final = 1_000_000_000_000_000
WINDOW_MS_MAX: Final = 3_600_000

Amount = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
WindowState = Literal["starting", "ready", "draining", "unhealthy"]
"""The states that billing's table of windows knows."""


class CostWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a replica's time, in one state, and what the engine's steps did in it. Windows of a boot follow each
    other without a gap; ``sequence`` counts them.

    ``busy_ms`` is the time in steps, ``stall_ms`` the part of it in which steps waited for an adapter's load.
    ``sequence_steps`` counts a sequence once in each of its steps, ``adapter_steps`` each distinct adapter once in each
    step. ``context_tokens`` are the tokens that decode steps read. The ``probe`` tokens are the agent's own.
    ``pool`` is "" for a replica of no pool. ``final``: the agent ended in order.
    """

    replica_id: Name
    boot_id: Name
    sequence: Amount
    base_model: Name
    rank_max: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    pool: Annotated[str, msgspec.Meta(max_length=63)] = ""
    engine: Name
    device: Annotated[str, msgspec.Meta(max_length=20)]
    state: WindowState
    start_ms: Amount
    end_ms: Amount
    busy_ms: Amount = 0
    stall_ms: Amount = 0
    steps: Amount = 0
    prefill_tokens: Amount = 0
    decode_tokens: Amount = 0
    context_tokens: Amount = 0
    sequence_steps: Amount = 0
    adapter_steps: Amount = 0
    probe_prefill_tokens: Amount = 0
    probe_decode_tokens: Amount = 0
    final: bool = False
