"""Publishes the GPU time of a token of each base model, as billing's cost windows show it, to gateways.

Until a base model has computed anything, its tokens take no GPU time, so limits on GPU-seconds allow everything.
"""

from typing import Final

from sqlalchemy import Engine

from billing.costs.token_times import token_times
from control_plane.publishing.outbox import publish_change
from control_plane.registry.models import BaseModel
from core import clock, db
from core.contracts.routes import GpuTime

_MEASURED_MS: Final = 24 * 3_600_000
_CHANGE_MIN: Final = 0.05  # a base model is published with its tokenizer, so a small difference waits


def publish_gpu_times(engine: Engine) -> bool:
    """Publish the base models whose times of the last day differ from the published ones. Always returns False."""
    with db.unit_of_work(engine) as session:
        since_ms = clock.to_ms(db.database_now(session)) - _MEASURED_MS
        for base_model, measured in token_times(session, since_ms=since_ms).items():
            row = session.get(BaseModel, base_model)
            if row is not None and _differs(row, measured):
                row.input_token_us, row.output_token_us = measured.input_token_us, measured.output_token_us
                publish_change(session, "base_models", base_model)
    return False


def _differs(row: BaseModel, measured: GpuTime) -> bool:
    pairs = (measured.input_token_us, row.input_token_us), (measured.output_token_us, row.output_token_us)
    return any(abs(new - known) > _CHANGE_MIN * known for new, known in pairs)
