"""What the engine's steps did since its start: the counters that the step meter writes to ``<run folder>/steps.json``.

This module is the reader's side and does not import vLLM; ``step_meter`` is the writer. Counters only grow while the
engine lives; ``started_at_ms`` identifies the engine. The file is replaced atomically within half a second of a step.
"""

from pathlib import Path
from typing import Final

import msgspec

STEPS_FILE: Final = "steps.json"


class EngineSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over all steps. The units are those of ``core.contracts.costs.CostWindow``; time is in nanoseconds."""

    started_at_ms: int = 0
    busy_ns: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0
    sequence_steps: int = 0
    adapter_steps: int = 0


def read_steps(run_dir: Path) -> EngineSteps | None:
    """The newest counters; None before the engine's first step."""
    try:
        return msgspec.json.decode((run_dir / STEPS_FILE).read_bytes(), type=EngineSteps)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
