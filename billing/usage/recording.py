"""Writes usage events as usage records, their sums and a ledger transfer, in the caller's transaction: all or none.

An id is recorded at most once: a request's, and that of the rest of an estimated one. Events that were recorded before
are recognized.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlmodel import Session, col, select

from billing import ledger, metrics
from billing.prices import price_book
from billing.prices.quantities import COUNTED
from billing.subscriptions.billed_until import share_billed_until
from billing.usage import provider_costs, sums
from billing.usage.models import UsageRecord
from billing.usage.stream import Refusal
from billing.usage.yielded import record_yielded
from core import clock
from core.contracts.usage import REST, UsageEvent
from core.db import database_now
from core.ids import new_id
from core.rating import rate

_Row = dict[str, Any]
"""The columns of a usage record."""

_OWNERS: Final = ("tenant_id", "key_id", "base_model", "adapter_id", "revision_id")
_PARTS_OF_INPUT: Final = ("cached_tokens", "aborted_prefill_tokens")


class RecordingResult(NamedTuple):
    """The result for each stream entry. ``recorded`` and ``duplicates`` are in the ledger once the transaction commits.
    An exact event that comes after its estimate is recorded as the rest of it.
    """

    recorded: dict[bytes, UsageEvent]
    duplicates: list[bytes]
    refused: dict[bytes, Refusal]

    def joined(self, other: "RecordingResult") -> "RecordingResult":
        """The results of both."""
        return RecordingResult(
            self.recorded | other.recorded, self.duplicates + other.duplicates, self.refused | other.refused
        )


class RecordingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``clock_skew``: how far ahead of the database an event may settle. ``late_max``: how old it may be.
    ``price_age_max``: how long a replaced price may still have admitted requests.
    """

    clock_skew: timedelta
    late_max: timedelta
    price_age_max: timedelta


def record(
    session: Session,
    events: Mapping[bytes, UsageEvent],
    limits: RecordingLimits,
    estimates: Mapping[str, UsageRecord] | None = None,
) -> RecordingResult:
    """Record the events of these stream entries that are new and, for an estimated request, the rest. An event is
    refused, without affecting the others, when it settled in the future or too long ago, has no price, or repeats a
    recorded id with other content. ``estimates`` are the records that rests among the events complete, by the id of the
    rest.
    """
    yielded = {entry_id: event for entry_id, event in events.items() if event.outcome == "yielded"}
    if yielded:
        new = dict.fromkeys(record_yielded(session, yielded))
        provider_costs.add(session, ((yielded[entry_id], None) for entry_id in new))
        others = {entry_id: event for entry_id, event in events.items() if entry_id not in yielded}
        result = RecordingResult(
            {entry_id: yielded[entry_id] for entry_id in new}, [each for each in yielded if each not in new], {}
        )
        return result.joined(record(session, others, limits))
    result = RecordingResult({}, [], {})
    rows = _rate(session, events, limits, result.refused)
    entries = {row["request_id"]: entry_id for entry_id, row in rows.items()}
    for request_id in _insert(session, {row["request_id"]: row for row in rows.values()}, estimates or {}):
        result.recorded[entries[request_id]] = events[entries[request_id]]
    metrics.STALE_PRICES.inc(
        sum(
            event.price_version_id not in (None, rows[entry_id]["price_version_id"])
            for entry_id, event in result.recorded.items()
        )
    )
    known = {
        entry_id: event
        for entry_id, event in events.items()
        if entry_id not in result.recorded and entry_id not in result.refused
    }
    rests = _compare(session, known, result) if known else {}
    if estimates is None:  # the costs of rests are in those of their requests
        costs = [(event, rows[entry_id]["price_version_id"]) for entry_id, event in result.recorded.items()]
        exact = [event for entry_id, event in known.items() if entry_id not in result.refused and not event.estimated]
        provider_costs.add(session, [*costs, *((event, None) for event in exact)])
    if not rests:
        return result
    # A rest has an id that no estimate has, so there is no second level.
    rest_events = {entry_id: rest for entry_id, (rest, _) in rests.items()}
    return result.joined(record(session, rest_events, limits, {rest.request_id: one for rest, one in rests.values()}))


def _rate(
    session: Session, events: Mapping[bytes, UsageEvent], limits: RecordingLimits, refused: dict[bytes, Refusal]
) -> dict[bytes, _Row]:
    """The records of these events without their transfer, the first of each request. Adds the refusals."""
    now = database_now(session)
    book = price_book.load(session, {event.tenant_id for event in events.values()})
    rows: dict[bytes, _Row] = {}
    seen: set[str] = set()
    for entry_id, event in events.items():
        settled_at = clock.from_ms(event.settled_at_ms)
        if event.request_id in seen:
            continue
        if settled_at > now + limits.clock_skew:
            reason = (
                f"settled_at is {settled_at.isoformat()}, ahead of the database's {now.isoformat()}; check both clocks"
            )
            refused[entry_id] = Refusal("early", reason)
        elif settled_at < now - limits.late_max:
            reason = f"settled_at is {settled_at.isoformat()}, more than {limits.late_max.days} days ago"
            refused[entry_id] = Refusal("too_late", reason)
        elif (version := book.of(event, age_max=limits.price_age_max)) is None:
            admitted = clock.from_ms(event.started_at_ms).isoformat()
            reason = f"tenant {event.tenant_id} had no plan with prices at {admitted}; give it one"
            refused[entry_id] = Refusal("unpriced", reason)
        else:
            rated = rate(event, version.card.highest_prices(event.base_model, event.rank_class, event.service_tier))
            seen.add(event.request_id)
            rows[entry_id] = {
                **_facts(event),
                **msgspec.structs.asdict(rated),
                "amount_nanos": rated.amount_nanos,
                "kv_measured": event.kv_measured,
                "price_version_id": version.id,
            }
    return rows


def _insert(session: Session, rows: dict[str, _Row], estimates: Mapping[str, UsageRecord]) -> list[str]:
    """Write the records that are new, their sums and one transfer for all of them. Returns their request ids.

    Records are inserted in the order of their ids, so that two writers of the same events wait for each other. Their
    transfer comes last: the database refuses a record for a transfer that exists.
    """
    if not rows:
        return []
    billed_until = share_billed_until(session, {row["tenant_id"] for row in rows.values()})
    transfer_id = new_id("tr")
    for row in rows.values():
        closed = billed_until[row["tenant_id"]]
        row["late_from"] = closed if closed is not None and row["settled_at"] < closed else None
        row["transfer_id"] = transfer_id
    statement = insert(UsageRecord).on_conflict_do_nothing().returning(col(UsageRecord.request_id))
    recorded = list(session.execute(statement, [rows[request_id] for request_id in sorted(rows)]).scalars())
    if not recorded:
        return []
    amounts: Counter[str] = Counter()
    for request_id in recorded:
        amounts[rows[request_id]["tenant_id"]] += rows[request_id]["amount_nanos"]
    ledger.post(session, "usage", ledger.earned(amounts), transfer_id=transfer_id)
    sums.add(session, ((rows[each], _counted_before(estimates.get(each), billed_until)) for each in recorded))
    metrics.LATE.inc(sum(rows[request_id]["late_from"] is not None for request_id in recorded))
    return recorded


def _counted_before(estimate: UsageRecord | None, billed_until: Mapping[str, datetime | None]) -> _Row | None:
    """The estimate that a rest completes, if the next invoice will have both."""
    if estimate is None:
        return None
    closed = billed_until[estimate.tenant_id]
    invoiced = closed is not None and (estimate.late_from or estimate.settled_at) < closed
    return None if invoiced else estimate.model_dump()


def unrecorded(session: Session, events: Sequence[UsageEvent]) -> list[UsageEvent]:
    """The events, or the rests of estimated ones, that are not in the ledger yet, in stream order."""
    events = [event for event in events if event.outcome != "yielded"]
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


def _compare(
    session: Session, events: Mapping[bytes, UsageEvent], result: RecordingResult
) -> dict[bytes, tuple[UsageEvent, UsageRecord]]:
    """Sort events whose request is recorded already: duplicates and conflicts, which are added to the result, or rests
    to record with their estimates, which are returned.
    """
    records = _records(session, {event.request_id for event in events.values()})
    rests = {}
    for entry_id, event in events.items():
        one = records[event.request_id]
        name = _difference(event, one)
        if event.estimated or name is None:  # an estimate says less than the record, so it contradicts nothing
            result.duplicates.append(entry_id)
        elif not one.estimated or any(getattr(event, owner) != getattr(one, owner) for owner in _OWNERS):
            reason = (
                f"request {event.request_id} is recorded with {name} {getattr(one, name)}, not {_facts(event)[name]}"
            )
            result.refused[entry_id] = Refusal("conflict", reason)
        elif (rest := _rest(event, one)) is None:
            result.duplicates.append(entry_id)
        else:
            rests[entry_id] = rest, one
    return rests


def _rest(event: UsageEvent, estimate: UsageRecord | UsageEvent) -> UsageEvent | None:
    """The difference between an exact event and the recorded estimate, as settle.lua counts it. None when there is
    none.
    """
    beyond = {name: max(0, getattr(event, name) - getattr(estimate, name)) for name in COUNTED}
    for name in _PARTS_OF_INPUT:
        beyond[name] = min(beyond[name], beyond["input_tokens"])
    if not any(beyond.values()):
        return None
    return msgspec.structs.replace(event, **beyond, request_id=event.request_id + REST, first_token_ms=None)


def _difference(event: UsageEvent, one: UsageRecord) -> str | None:
    return next((name for name, value in _facts(event).items() if getattr(one, name) != value), None)


def _facts(event: UsageEvent) -> dict[str, Any]:  # Any: columns of every type
    """The event as columns."""
    fields = msgspec.structs.asdict(event) | {"gpu_us": event.gpu_us}
    del fields["input_gpu_us"], fields["output_gpu_us"]
    del fields["token_costs"], fields["counted_here"]  # billing/usage/provider_costs.py records them
    del fields["price_version_id"]  # the record has the one that it is charged by
    del fields["kv_measured"]  # says how the quantity was found; the same request may be settled again without it
    fields["started_at"] = clock.from_ms(fields.pop("started_at_ms"))
    fields["settled_at"] = clock.from_ms(fields.pop("settled_at_ms"))
    return fields
