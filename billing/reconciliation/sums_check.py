"""Checks the sums of usage against what they are made of: hours and replicas' hours against records, days against
hours, months against days and adjustments. Each quantity and each part of an amount is compared by itself, so that
two errors do not hide each other. Only full runs do it: it reads every record.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.prices.quantities import AMOUNT_SQL, AMOUNTS, COUNTED
from billing.reconciliation.differences import Difference, unit_of
from core import clock
from core.ids import first_id_of_ms

_DAY: Final = (*COUNTED, *AMOUNTS)
_MONTH: Final = ("input_tokens", "cached_tokens", "output_tokens", "amount_nanos")
_REPLICA: Final = (
    "prompt_tokens", "exact_cached_tokens", "output_tokens", "kv_page_ms", "kv_measured_page_ms",
)  # fmt: skip

_OWNER: Final = ("tenant_id", "base_model", "hour")
_RECORDS: Final = """
SELECT tenant_id, base_model, date_trunc('hour', settled_at, 'UTC') AS hour, {sums} FROM usage_now GROUP BY 1, 2, 3
"""
_HOURS: Final = "SELECT tenant_id, base_model, hour, {sums} FROM usage_hours GROUP BY 1, 2, 3"
_HOURS_BY_DAY: Final = """
SELECT tenant_id, base_model, date_trunc('day', hour, 'UTC') AS hour, {sums} FROM usage_hours GROUP BY 1, 2, 3
"""
_DAYS: Final = "SELECT tenant_id, base_model, day AS hour, {sums} FROM usage_days GROUP BY 1, 2, 3"
# An adjustment is spending of the month in which it was made, and belongs to no key.
_DAYS_BY_MONTH: Final = f"""
SELECT tenant_id, key_id, hour, {{sums}} FROM (
    SELECT tenant_id, key_id, date_trunc('month', day, 'UTC') AS hour, input_tokens, cached_tokens, output_tokens,
        {AMOUNT_SQL} AS amount_nanos
    FROM usage_days
  UNION ALL
    SELECT tenant_id, '', date_trunc('month', created_at, 'UTC'), 0, 0, 0, usage_nanos FROM usage_adjustments
) spent GROUP BY 1, 2, 3
"""  # noqa: S608 - a constant
_MONTHS: Final = "SELECT tenant_id, key_id, month AS hour, {sums} FROM usage_months GROUP BY 1, 2, 3"
# ``lows`` are the first request ids of each hour, in order: a search in them is far cheaper than to decode every id.
_RECORDS_BY_REPLICA: Final = """
SELECT hour, replica_id, tenant_id, base_model, {sums} FROM (
    SELECT (CAST(:hours AS timestamptz[]))[
            width_bucket(CAST(request_id AS text) COLLATE "C", CAST(:lows AS text[]))
        ] AS hour, replica_id, tenant_id, base_model, input_tokens - aborted_prefill_tokens AS prompt_tokens,
        CASE WHEN NOT estimated AND aborted_prefill_tokens = 0 THEN cached_tokens ELSE 0 END AS exact_cached_tokens,
        output_tokens, kv_page_ms, CASE WHEN kv_measured THEN kv_page_ms ELSE 0 END AS kv_measured_page_ms
    FROM usage_records
) made GROUP BY 1, 2, 3, 4
"""
_REPLICA_HOURS: Final = """
SELECT hour, replica_id, tenant_id, base_model, {sums} FROM (
    SELECT *, input_tokens - aborted_prefill_tokens AS prompt_tokens FROM usage_replica_hours
) made GROUP BY 1, 2, 3, 4
"""
_REPLICA_HOUR_STARTS: Final = sa.text(
    "SELECT DISTINCT hour FROM usage_replica_hours WHERE hour > to_timestamp(0) ORDER BY 1"
)
_COMPARED: Final = """
WITH parts AS ({parts}), wholes AS ({wholes})
SELECT {owner}, {columns} FROM parts p FULL JOIN wholes w USING ({owner}) WHERE {differ} ORDER BY {owner}
"""


def check_sums(session: Session) -> Iterator[Difference]:
    """Every sum that is not what it is made of."""
    yield from _compare(session, "usage_hours", _OWNER, _DAY, _RECORDS, _HOURS)
    yield from _compare(session, "usage_days", _OWNER, _DAY, _HOURS_BY_DAY, _DAYS)
    yield from _compare(session, "usage_months", ("tenant_id", "key_id", "hour"), _MONTH, _DAYS_BY_MONTH, _MONTHS)
    hours = session.connection().execute(_REPLICA_HOUR_STARTS).scalars().all()
    if hours:
        lows = [first_id_of_ms("req", clock.to_ms(hour)) for hour in hours]
        yield from _compare(
            session, "usage_replica_hours", ("hour", "replica_id", "tenant_id", "base_model"), _REPLICA,
            _RECORDS_BY_REPLICA, _REPLICA_HOURS, hours=list(hours), lows=lows,
        )  # fmt: skip


def _compare(
    session: Session, table: str, owner: Sequence[str], names: Sequence[str], parts: str, wholes: str, **parameters: Any
) -> Iterator[Difference]:  # parameters of several types
    sums = ", ".join(f"sum({name}) AS {name}" for name in names)
    statement = _COMPARED.format(
        parts=parts.format(sums=sums),
        wholes=wholes.format(sums=sums),
        owner=", ".join(owner),
        columns=", ".join(
            f"coalesce(p.{name}, 0)::bigint AS {name}, coalesce(w.{name}, 0)::bigint AS {name}_summed" for name in names
        ),
        differ=" OR ".join(f"coalesce(p.{name}, 0) <> coalesce(w.{name}, 0)" for name in names),
    )
    for row in session.connection().execute(sa.text(statement), parameters).mappings():
        key = f" {row['key_id'] or 'no key'}" if "key_id" in row else ""
        for name in names:
            if row[name] != row[f"{name}_summed"]:
                yield Difference(
                    kind="sums_records",
                    subject=f"{table}{key}: {name}",
                    unit=unit_of(name),
                    expected=row[name],
                    found=row[f"{name}_summed"],
                    replica_id=row.get("replica_id"),
                    tenant_id=row["tenant_id"],
                    base_model=row.get("base_model"),
                    hour=row["hour"],
                )
