"""The GPU time of a token, as replicas were busy for it lately: limits on GPU-seconds hold and count it.

The busy time of a kind of replica is spread over what it computed, by the weights of its cost function. So a token's
time falls as replicas batch more. A replica's time counts once, however many devices it has.
"""

import sqlalchemy as sa
from sqlmodel import Session, col

from billing.costs import cost_functions
from billing.costs.cost_functions import ReplicaKind
from billing.costs.models import ReplicaCostWindow
from billing.costs.step_model import UNFITTED, StepWeights
from core.contracts.routes import GpuTime


def token_times(session: Session, *, since_ms: int) -> dict[str, GpuTime]:
    """The times by base model, of the windows that began at ``since_ms`` or later; of several kinds of replicas, the
    longest. A base model of which nothing was computed then is missing.
    """
    window = ReplicaCostWindow
    kind = [col(getattr(window, name)) for name in ReplicaKind.__struct_fields__]
    step_ms = sa.func.sum(col(window.busy_ms) - sa.func.least(col(window.stall_ms), col(window.busy_ms)))
    statement = (
        sa.select(*kind, step_ms, sa.func.sum(col(window.prefill_tokens)), sa.func.sum(col(window.decode_tokens)))
        .where(col(window.start_ms) >= since_ms, col(window.state) != "starting")
        .group_by(*kind)
    )
    found: dict[str, GpuTime] = {}
    for *names, busy_ms, prefill_tokens, decode_tokens in session.connection().execute(statement).all():
        if prefill_tokens + decode_tokens == 0:
            continue
        of_kind = ReplicaKind(**dict(zip(ReplicaKind.__struct_fields__, names, strict=True)))
        fitted = cost_functions.in_force(session, of_kind)
        weights = UNFITTED if fitted is None else fitted.weights
        measured = _spread(int(busy_ms) * 1000, int(prefill_tokens), int(decode_tokens), weights)
        known = found.get(of_kind.base_model, measured)
        found[of_kind.base_model] = GpuTime(
            input_token_us=max(known.input_token_us, measured.input_token_us),
            output_token_us=max(known.output_token_us, measured.output_token_us),
        )
    return found


def _spread(busy_us: int, prefill_tokens: int, decode_tokens: int, weights: StepWeights) -> GpuTime:
    """To the nearest microsecond, and at least 1 us a token, so that a limit holds something."""
    per_prefill, per_decode = max(1, weights.prefill_token_ps), max(1, weights.decode_token_ps)
    total = per_prefill * prefill_tokens + per_decode * decode_tokens
    return GpuTime(
        input_token_us=max(1, (busy_us * per_prefill + total // 2) // total),
        output_token_us=max(1, (busy_us * per_decode + total // 2) // total),
    )
