"""Records what engines computed for batch requests before these gave way to better work and ran again, and for answers
of cascades that were replaced and that the platform pays for.

It is the platform's cost: no tenant's usage, bill or quota has it. The sums by replica do, because engines counted it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from billing.usage import sums
from billing.usage.models import YieldedUsage
from core import clock
from core.contracts.usage import UsageEvent

_FACTS: Final = (
    "request_id", "tenant_id", "base_model", "adapter_id", "replica_id", "input_tokens", "cached_tokens",
    "aborted_prefill_tokens", "output_tokens", "kv_page_ms", "kv_measured",
)  # fmt: skip


def record_yielded(session: Session, events: Mapping[bytes, UsageEvent]) -> Sequence[bytes]:
    """Record the events that are new. Returns their stream entries."""
    rows = {
        entry_id: {name: getattr(event, name) for name in _FACTS} | {"settled_at": clock.from_ms(event.settled_at_ms)}
        for entry_id, event in sorted(events.items(), key=lambda each: each[1].request_id)
    }
    statement = insert(YieldedUsage).on_conflict_do_nothing().returning(col(YieldedUsage.request_id))
    entries = {row["request_id"]: entry_id for entry_id, row in rows.items()}
    new = [entries[each] for each in session.execute(statement, list(rows.values())).scalars()]
    sums.add_by_replica(session, [rows[entry_id] | {"estimated": False} for entry_id in new])
    return new
