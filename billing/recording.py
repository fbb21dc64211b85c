"""Usage events into usage records and ledger transfers, in the caller's transaction: both or neither.

The transfer of a request is made at most once, and only with it the record. What was recorded before is recognised.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger, prices
from billing.database_clock import database_now
from billing.events import Refusal
from billing.models import UsageRecord
from core import clock
from core.contracts import UsageEvent
from core.rating import Charge, rate


class Arrival(msgspec.Struct, frozen=True):
    """An event and the stream entry it came in."""

    entry_id: bytes
    event: UsageEvent


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each entry. ``recorded`` and ``duplicates`` are in the ledger once the transaction commits."""

    recorded: list[Arrival]
    duplicates: list[bytes]
    refused: dict[bytes, Refusal]


class _Rated(msgspec.Struct, frozen=True):
    arrival: Arrival
    price_version_id: str
    charge: Charge


def record(session: Session, arrivals: Sequence[Arrival], *, clock_skew: timedelta) -> Recording:
    """Record what is new. An event from more than ``clock_skew`` ahead of the database, without a price, or with the id
    of a recorded one but other content is refused, and does not disturb the others.
    """
    latest = database_now(session) + clock_skew
    book = prices.load(session, {arrival.event.tenant_id for arrival in arrivals})
    refused: dict[bytes, Refusal] = {}
    rated: dict[str, _Rated] = {}
    repeated: list[Arrival] = []
    for arrival in arrivals:
        event = arrival.event
        settled_at = clock.from_ms(event.settled_at_ms)
        if event.request_id in rated:
            repeated.append(arrival)
        elif settled_at > latest:
            refused[arrival.entry_id] = Refusal("impossible", f"settled_at is {settled_at.isoformat()}, in the future")
        elif (price := book.in_force(event.tenant_id, settled_at)) is None:
            reason = f"tenant {event.tenant_id} had no plan with prices at {settled_at.isoformat()}; give it one"
            refused[arrival.entry_id] = Refusal("unpriced", reason)
        else:
            rated[event.request_id] = _Rated(arrival, price.id, rate(event, price.prices))
    transfer_ids = ledger.post(
        session,
        [
            ledger.usage_posting(
                request_id=request_id, tenant_id=one.arrival.event.tenant_id, amount_nanos=one.charge.amount_nanos
            )
            for request_id, one in rated.items()
        ],
    )
    if transfer_ids:
        session.exec(
            sa.insert(UsageRecord),
            params=[_row(rated[request_id], transfer_id) for request_id, transfer_id in transfer_ids.items()],
        )
    repeated += [one.arrival for request_id, one in rated.items() if request_id not in transfer_ids]
    conflicts = _conflicts(session, repeated)
    return Recording(
        recorded=[rated[request_id].arrival for request_id in transfer_ids],
        duplicates=[arrival.entry_id for arrival in repeated if arrival.entry_id not in conflicts],
        refused=refused | conflicts,
    )


def _conflicts(session: Session, repeated: Sequence[Arrival]) -> dict[bytes, Refusal]:
    """Of the events whose request is recorded already, those that say something else than the record."""
    if not repeated:
        return {}
    request_ids = {arrival.event.request_id for arrival in repeated}
    records = {
        one.request_id: one
        for one in session.exec(select(UsageRecord).where(col(UsageRecord.request_id).in_(request_ids)))
    }
    return {
        arrival.entry_id: Refusal("conflict", f"request {arrival.event.request_id} is recorded with another {name}")
        for arrival in repeated
        if not arrival.event.estimated  # it says less than the record, and so contradicts nothing
        for name in [_difference(arrival.event, records[arrival.event.request_id])]
        if name is not None
    }


def _difference(event: UsageEvent, one: UsageRecord) -> str | None:
    return next((name for name, value in _facts(event).items() if getattr(one, name) != value), None)


def _facts(event: UsageEvent) -> dict[str, Any]:  # Any: columns of every type
    """The event as columns."""
    fields = msgspec.structs.asdict(event)
    fields["started_at"] = clock.from_ms(fields.pop("started_at_ms"))
    fields["settled_at"] = clock.from_ms(fields.pop("settled_at_ms"))
    return fields


def _row(one: _Rated, transfer_id: str) -> dict[str, Any]:  # Any: columns of every type
    return {
        **_facts(one.arrival.event),
        **msgspec.structs.asdict(one.charge),
        "amount_nanos": one.charge.amount_nanos,
        "price_version_id": one.price_version_id,
        "transfer_id": transfer_id,
    }
