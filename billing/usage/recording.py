"""Writes usage events as usage records, their sums and a ledger transfer, in the caller's transaction: all or none.

A request is recorded at most once. Events that were recorded before are recognized.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlmodel import Session, col, select

from billing import ledger, metrics
from billing.prices import price_book
from billing.prices.price_book import EventPrice
from billing.subscriptions.billed_until import share_billed_until
from billing.usage import sums
from billing.usage.models import UsageRecord
from billing.usage.stream import Refusal
from core import clock
from core.contracts.usage import REST, UsageEvent
from core.db import database_now
from core.ids import new_id
from core.rating import Charge, rate


class ReceivedEvent(msgspec.Struct, frozen=True):
    """An event and its stream entry. A rest comes with the recorded estimate that it completes."""

    entry_id: bytes
    event: UsageEvent
    estimate: UsageRecord | None = None


class RecordingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each entry. ``recorded`` and ``duplicates`` are in the ledger once the transaction commits."""

    recorded: list[ReceivedEvent]
    duplicates: list[bytes]
    refused: dict[bytes, Refusal]


_NOTHING: Final = RecordingResult(recorded=[], duplicates=[], refused={})
_OWNERS: Final = ("tenant_id", "key_id", "base_model", "adapter_id", "revision_id")
_QUANTITIES: Final = ("input_tokens", "cached_tokens", "aborted_prefill_tokens", "output_tokens", "kv_page_ms")
_PARTS_OF_INPUT: Final = ("cached_tokens", "aborted_prefill_tokens")


class RecordingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``clock_skew``: how far ahead of the database an event may settle. ``late_max``: how old it may be.
    ``price_age_max``: how long a replaced price may still have admitted requests.
    """

    clock_skew: timedelta
    late_max: timedelta
    price_age_max: timedelta


class _Rated(msgspec.Struct, frozen=True):
    arrival: ReceivedEvent
    price: EventPrice
    charge: Charge


def record(session: Session, arrivals: Sequence[ReceivedEvent], limits: RecordingLimits) -> RecordingResult:
    """Record what is new and, for an estimated request, the rest. An event is refused, without affecting the others,
    when it settled in the future or too long ago, has no price, or repeats a recorded id with other content.
    """
    rated, repeated, refused = _rate(session, arrivals, limits)
    recorded = _insert(session, rated)
    written = set(recorded)
    repeated += [one.arrival for request_id, one in rated.items() if request_id not in written]
    known = _compare(session, repeated)
    # A rest has an id that no estimate has, so there is no second level.
    rest = record(session, known.recorded, limits) if known.recorded else _NOTHING
    return RecordingResult(
        recorded=[*(rated[request_id].arrival for request_id in recorded), *rest.recorded],
        duplicates=[*known.duplicates, *rest.duplicates],
        refused=refused | known.refused | rest.refused,
    )


def _rate(
    session: Session, arrivals: Sequence[ReceivedEvent], limits: RecordingLimits
) -> tuple[dict[str, _Rated], list[ReceivedEvent], dict[bytes, Refusal]]:
    """The first event of each request with its charge, later events of the same requests, and refusals."""
    now = database_now(session)
    book = price_book.load(session, {arrival.event.tenant_id for arrival in arrivals})
    rated: dict[str, _Rated] = {}
    repeated: list[ReceivedEvent] = []
    refused: dict[bytes, Refusal] = {}
    for arrival in arrivals:
        event = arrival.event
        settled_at = clock.from_ms(event.settled_at_ms)
        if event.request_id in rated:
            repeated.append(arrival)
        elif settled_at > now + limits.clock_skew:
            reason = (
                f"settled_at is {settled_at.isoformat()}, ahead of the database's {now.isoformat()}; check both clocks"
            )
            refused[arrival.entry_id] = Refusal("early", reason)
        elif settled_at < now - limits.late_max:
            reason = f"settled_at is {settled_at.isoformat()}, more than {limits.late_max.days} days ago"
            refused[arrival.entry_id] = Refusal("too_late", reason)
        elif (price := book.of(event, age_max=limits.price_age_max)) is None:
            admitted = clock.from_ms(event.started_at_ms).isoformat()
            reason = f"tenant {event.tenant_id} had no plan with prices at {admitted}; give it one"
            refused[arrival.entry_id] = Refusal("unpriced", reason)
        else:
            prices = price.version.card.held(event.base_model, event.rank_class, event.service_tier)
            rated[event.request_id] = _Rated(arrival, price, rate(event, prices))
    return rated, repeated, refused


def _insert(session: Session, rated: Mapping[str, _Rated]) -> list[str]:
    """Write the records that are new, their sums and one transfer for all of them. Returns their request ids.

    Records are inserted in the order of their ids, so that two writers of the same events wait for each other. Their
    transfer comes last: the database refuses a record for a transfer that exists.
    """
    if not rated:
        return []
    billed_until = share_billed_until(session, {one.arrival.event.tenant_id for one in rated.values()})
    transfer_id = new_id("tr")
    rows = {request_id: _row(one, transfer_id, billed_until) for request_id, one in sorted(rated.items())}
    statement = insert(UsageRecord).on_conflict_do_nothing().returning(col(UsageRecord.request_id))
    recorded = list(session.execute(statement, list(rows.values())).scalars())
    if not recorded:
        return []
    amounts: Counter[str] = Counter()
    for request_id in recorded:
        amounts[rows[request_id]["tenant_id"]] += rows[request_id]["amount_nanos"]
    ledger.post(session, ledger.usage_posting(transfer_id=transfer_id, amounts_nanos=amounts))
    sums.add(session, ((rows[request_id], _estimate(rated[request_id], billed_until)) for request_id in recorded))
    metrics.STALE_PRICES.inc(sum(rated[request_id].price.stale for request_id in recorded))
    metrics.LATE.inc(sum(rows[request_id]["late_from"] is not None for request_id in recorded))
    return recorded


def _estimate(one: _Rated, billed_until: Mapping[str, datetime | None]) -> dict[str, Any] | None:
    """The estimate that a rest completes, if the next invoice will have both."""
    estimate = one.arrival.estimate
    if estimate is None:
        return None
    closed = billed_until[estimate.tenant_id]
    invoiced = closed is not None and (estimate.late_from or estimate.settled_at) < closed
    return None if invoiced else estimate.model_dump()  # Any: columns of every type


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
            reason = (
                f"request {event.request_id} is recorded with {name} {getattr(one, name)}, not {_facts(event)[name]}"
            )
            found.refused[entry_id] = Refusal("conflict", reason)
        elif (rest := _rest(event, one)) is None:
            found.duplicates.append(entry_id)
        else:
            found.recorded.append(ReceivedEvent(entry_id, rest, one))
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
    del fields["kv_measured"]  # says how the quantity was found; the same request may be settled again without it
    fields["started_at"] = clock.from_ms(fields.pop("started_at_ms"))
    fields["settled_at"] = clock.from_ms(fields.pop("settled_at_ms"))
    return fields


def _row(one: _Rated, transfer_id: str, billed_until: Mapping[str, datetime | None]) -> dict[str, Any]:
    facts = _facts(one.arrival.event)  # Any: columns of every type
    closed = billed_until[facts["tenant_id"]]
    return {
        **facts,
        **msgspec.structs.asdict(one.charge),
        "amount_nanos": one.charge.amount_nanos,
        "kv_measured": one.arrival.event.kv_measured,
        "late_from": closed if closed is not None and facts["settled_at"] < closed else None,
        "price_version_id": one.price.version.id,
        "transfer_id": transfer_id,
    }
