"""Writes usage events as usage records and ledger transfers, in the caller's transaction: both or neither.

A request's transfer is made at most once, together with its record. Events that were recorded before are recognized.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Session, col, select

from billing import ledger, prices
from billing.models import UsageRecord
from billing.stream import Refusal
from core import clock
from core.contracts.usage import REST, UsageEvent
from core.db import database_now
from core.rating import Charge, rate


class ReceivedEvent(msgspec.Struct, frozen=True):
    """An event and its stream entry."""

    entry_id: bytes
    event: UsageEvent


class RecordingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each entry. ``recorded`` and ``duplicates`` are in the ledger once the transaction commits."""

    recorded: list[ReceivedEvent]
    duplicates: list[bytes]
    refused: dict[bytes, Refusal]


_NOTHING: Final = RecordingResult(recorded=[], duplicates=[], refused={})
_OWNERS: Final = ("tenant_id", "key_id", "base_model", "adapter_id", "revision_id")
_QUANTITIES: Final = ("input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms")
_PARTS_OF_INPUT: Final = ("cached_tokens", "aborted_prefill_tokens")


class _Rated(msgspec.Struct, frozen=True):
    arrival: ReceivedEvent
    price_version_id: str
    charge: Charge


def record(session: Session, arrivals: Sequence[ReceivedEvent], *, clock_skew: timedelta) -> RecordingResult:
    """Record what is new and, for an estimated request, the rest. An event is refused, without affecting the others,
    when it lies more than ``clock_skew`` ahead of the database, has no price, or repeats a recorded id with other
    content.
    """
    latest = database_now(session) + clock_skew
    book = prices.load(session, {arrival.event.tenant_id for arrival in arrivals})
    refused: dict[bytes, Refusal] = {}
    rated: dict[str, _Rated] = {}
    repeated: list[ReceivedEvent] = []
    for arrival in arrivals:
        event = arrival.event
        settled_at = clock.from_ms(event.settled_at_ms)
        if event.request_id in rated:
            repeated.append(arrival)
        elif settled_at > latest:
            refused[arrival.entry_id] = Refusal("impossible", f"settled_at is {settled_at.isoformat()}, in the future")
        elif (price := book.of(event)) is None:
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
    known = _compare(session, repeated)
    # A rest has an id that no estimate has, so there is no second level.
    rest = record(session, known.recorded, clock_skew=clock_skew) if known.recorded else _NOTHING
    return RecordingResult(
        recorded=[*(rated[request_id].arrival for request_id in transfer_ids), *rest.recorded],
        duplicates=[*known.duplicates, *rest.duplicates],
        refused=refused | known.refused | rest.refused,
    )


def unrecorded(session: Session, events: Sequence[UsageEvent]) -> list[UsageEvent]:
    """The events, or the rests of estimated ones, that are not in the ledger yet, in stream order."""
    ids = {event.request_id for event in events}
    known: dict[str, UsageRecord | UsageEvent] = dict(_records(session, [*ids, *(each + REST for each in ids)]))
    found: list[UsageEvent] = []
    for event in events:
        new, one = event, known.get(event.request_id)
        if one is not None:
            rest = _rest(event, one) if one.estimated and not event.estimated else None
            if rest is None or rest.request_id in known:
                continue
            new = rest
        known[new.request_id] = new
        found.append(new)
    return found


def _records(session: Session, request_ids: Collection[str]) -> dict[str, UsageRecord]:
    ids = sa.any_(sa.cast(list(request_ids), ARRAY(sa.Text)))  # one parameter for any number of ids
    return {one.request_id: one for one in session.exec(select(UsageRecord).where(col(UsageRecord.request_id) == ids))}


def _compare(session: Session, repeated: Sequence[ReceivedEvent]) -> RecordingResult:
    """Sort events whose request is recorded already: duplicates, rests to record, or conflicts."""
    if not repeated:
        return _NOTHING
    records = _records(session, {arrival.event.request_id for arrival in repeated})
    found = RecordingResult(recorded=[], duplicates=[], refused={})
    for entry_id, event in ((arrival.entry_id, arrival.event) for arrival in repeated):
        one = records[event.request_id]
        name = _difference(event, one)
        if event.estimated or name is None:  # an estimate says less than the record, so it contradicts nothing
            found.duplicates.append(entry_id)
        elif not one.estimated or any(getattr(event, owner) != getattr(one, owner) for owner in _OWNERS):
            found.refused[entry_id] = Refusal("conflict", f"request {event.request_id} is recorded with another {name}")
        elif (rest := _rest(event, one)) is None:
            found.duplicates.append(entry_id)
        else:
            found.recorded.append(ReceivedEvent(entry_id, rest))
    return found


def _rest(event: UsageEvent, estimate: UsageRecord | UsageEvent) -> UsageEvent | None:
    """The difference between an exact event and the recorded estimate, as settle.lua counts it. None when there is
    none.
    """
    beyond = {name: max(0, getattr(event, name) - getattr(estimate, name)) for name in _QUANTITIES}
    for name in _PARTS_OF_INPUT:
        beyond[name] = min(beyond[name], beyond["input_tokens"])
    if not any(beyond.values()):
        return None
    return msgspec.structs.replace(event, **beyond, request_id=event.request_id + REST, first_token_ms=None)


def _difference(event: UsageEvent, one: UsageRecord) -> str | None:
    return next((name for name, value in _facts(event).items() if getattr(one, name) != value), None)


def _facts(event: UsageEvent) -> dict[str, Any]:  # Any: columns of every type
    """The event as columns."""
    fields = msgspec.structs.asdict(event)
    del fields["price_version_id"]  # the record has the one that it is charged by
    del fields["kv_measured"]  # says how the quantity was found, and is no quantity
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
