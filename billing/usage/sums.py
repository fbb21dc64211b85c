"""The sums of usage records by hour, day and month: written with the records, read by reports, quotas and closes. The
sums by replica are read by reconciliation. Triggers of ``migrations/schema/billing`` add amendments and adjustments
when they are inserted. A close reads the sums in ``billing/charges/inputs.py``, by the columns that
``billing/prices/quantities.py`` names.

The sums of a batch are added up here first, so that a batch costs one row per owner and hour instead of one per
request. Rows are written in the order of their keys, so that two workers wait for each other and do not deadlock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlmodel import Session, SQLModel

from billing.prices.quantities import AMOUNTS, COUNTED, QUANTITIES
from billing.usage.models import UsageDay, UsageHour, UsageMonth, UsageReplicaHour
from core import clock
from core.contracts.usage import REST
from core.db import database_now
from core.ids import ms_of_id
from core.periods import EPOCH, bucket_start, month_start

Row = Mapping[str, Any]  # the columns of a usage record

NOT_LATE: Final = EPOCH
"""``late_from`` of a sum of usage that is not late: keys hold no NULL."""

_HOUR_KEY: Final = (
    "tenant_id", "hour", "late_from", "key_id", "base_model", "adapter_id", "revision_id", "rank_class",
    "price_version_id", "service_tier",
)  # fmt: skip
_DAY_KEY: Final = (
    "tenant_id", "day", "key_id", "base_model", "adapter_id", "rank_class", "price_version_id", "service_tier",
)  # fmt: skip
_DAY_SUMS: Final = ("requests", "estimated_requests", *COUNTED, *AMOUNTS)
_HOUR_SUMS: Final = (*_DAY_SUMS, *(quantity.requests for quantity in QUANTITIES.values()))
_REPLICA_KEY: Final = ("hour", "replica_id", "tenant_id", "base_model")
_REPLICA_SUMS: Final = (
    "requests", "estimated_requests", "input_tokens", "exact_cached_tokens", "aborted_prefill_tokens", "output_tokens",
    "kv_page_ms", "kv_measured_page_ms", "kv_unmeasured_requests",
)  # fmt: skip
_MONTH_KEY: Final = ("tenant_id", "month", "key_id")
_MONTH_SUMS: Final = ("input_tokens", "cached_tokens", "output_tokens", "amount_nanos", "gpu_us")


def add(session: Session, records: Iterable[tuple[Row, Row | None]]) -> None:
    """Add new records to their sums. A rest comes with the estimate that it completes, if the next invoice will have
    both: then the request is counted once.
    """
    hours: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    months: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    rows = []
    for row, estimate in records:
        rows.append(row)
        hours[_hour_key(row)].update(_hour_sums(row, estimate))
        months[row["tenant_id"], month_start(row["settled_at"]), row["key_id"]].update(
            {name: row[name] for name in _MONTH_SUMS}
        )
    _write_hours(session, hours)
    _write(session, UsageMonth, _MONTH_KEY, _MONTH_SUMS, months)
    add_by_replica(session, rows)


def add_by_replica(session: Session, rows: Iterable[Row]) -> None:
    """Add new records, or what batch requests computed before they gave way, to the sums by replica."""
    replicas: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        replica = (request_hour(row["request_id"]), row["replica_id"], row["tenant_id"], row["base_model"])
        replicas[replica].update(_replica_sums(row))
    _write(session, UsageReplicaHour, _REPLICA_KEY, _REPLICA_SUMS, replicas, changed_at=database_now(session))


def _write_hours(session: Session, hours: Mapping[tuple[Any, ...], Counter[str]]) -> None:
    """Write sums by hour, and the same by day."""
    days: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for key, total in hours.items():
        owner = dict(zip(_HOUR_KEY, key, strict=True)) | {"day": bucket_start(key[1], "1d")}
        days[tuple(owner[name] for name in _DAY_KEY)].update({name: total[name] for name in _DAY_SUMS})
    _write(session, UsageHour, _HOUR_KEY, _HOUR_SUMS, hours)
    _write(session, UsageDay, _DAY_KEY, _DAY_SUMS, days)


def _hour_key(row: Row) -> tuple[Any, ...]:
    return (
        row["tenant_id"],
        hour_of(row["settled_at"]),
        row["late_from"] or NOT_LATE,
        row["key_id"],
        row["base_model"],
        row["adapter_id"] or "",
        row["revision_id"] or "",
        row["rank_class"] or 0,
        row["price_version_id"],
        row["service_tier"],
    )


def _hour_sums(row: Row, estimate: Row | None) -> dict[str, int]:
    return {
        **{name: row[name] for name in _HOUR_SUMS if name in row},
        "requests": not row["request_id"].endswith(REST),
        "estimated_requests": row["estimated"],
        # A request with an estimate and a rest is one request for each quantity.
        **{
            each.requests: each.counted(row) > 0 and (estimate is None or each.counted(estimate) == 0)
            for each in QUANTITIES.values()
        },
    }


def _replica_sums(row: Row) -> dict[str, int]:
    is_request = ":" not in row["request_id"]
    is_exact = not row["estimated"] and row["aborted_prefill_tokens"] == 0
    return {
        **{name: row[name] for name in _REPLICA_SUMS if name in row},
        "requests": is_request,
        "estimated_requests": row["estimated"],
        "exact_cached_tokens": row["cached_tokens"] if is_exact else 0,
        "kv_measured_page_ms": row["kv_page_ms"] if row["kv_measured"] else 0,
        "kv_unmeasured_requests": not row["kv_measured"] and is_request,
    }


def request_hour(request_id: str) -> datetime:
    """The start of the UTC hour in which a request's id was made; the epoch for an id of another form."""
    made_ms = ms_of_id(request_id.partition(":")[0])
    return EPOCH if made_ms is None else hour_of(clock.from_ms(made_ms))


def hour_of(instant: datetime) -> datetime:
    """The start of the UTC hour that holds an aware instant."""
    return bucket_start(instant, "1h")


def _write(
    session: Session,
    table: type[SQLModel],
    key: tuple[str, ...],
    sums: tuple[str, ...],
    added: Mapping[tuple[Any, ...], Counter[str]],
    **stamped: datetime,
) -> None:
    """Add to the rows with these keys. The new values are an array for each column: a batch is one statement."""
    if not added:
        return
    columns = sa.inspect(table).columns
    owners = sorted(added)
    values = {name: [owner[position] for owner in owners] for position, name in enumerate(key)}
    values |= {name: [int(added[owner][name]) for owner in owners] for name in sums}
    values |= {name: [instant] * len(owners) for name, instant in stamped.items()}
    rows = sa.select(*(sa.func.unnest(sa.cast(each, ARRAY(columns[name].type))) for name, each in values.items()))
    statement = insert(table).from_select(list(values), rows)
    grown = {name: columns[name] + statement.excluded[name] for name in sums}
    newest = {name: sa.func.greatest(columns[name], statement.excluded[name]) for name in stamped}
    session.connection().execute(statement.on_conflict_do_update(index_elements=key, set_=grown | newest))
