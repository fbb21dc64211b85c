"""Checks that the ledger, its causes and the invoices agree: each amount was written twice, so a difference is a defect
or a change by hand.

``check_new`` reads what was written since an instant, ``check_all`` everything, also the sums of usage against the
records that they are made of.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.differences import Difference, DifferenceUnit
from billing.reconciliation.invoice_check import check_invoices
from billing.reconciliation.transfer_rules import ACCOUNTS
from core import clock
from core.ids import first_id_of_ms

_FIRST_TRANSFER: Final = "tr_"

# A leg on an account that its kind of transfer does not move. Transfers are read in the order of their ids.
_WRONG_ACCOUNTS: Final = sa.text("""
SELECT t.id, t.kind, a.kind AS account, a.tenant_id, e.amount_nanos
FROM transfers t JOIN entries e ON e.transfer_id = t.id JOIN accounts a ON a.id = e.account_id
WHERE t.id >= :first AND (t.kind || ' ' || a.kind) <> ALL(CAST(:allowed AS text[]))
ORDER BY t.id, a.kind
""")
_UNBALANCED: Final = sa.text("""
SELECT t.id, coalesce(sum(e.amount_nanos), 0)::bigint AS nanos, count(e.transfer_id) AS legs
FROM transfers t LEFT JOIN entries e ON e.transfer_id = t.id
WHERE t.id >= :first GROUP BY t.id HAVING coalesce(sum(e.amount_nanos), 0) <> 0 OR count(e.transfer_id) < 2
ORDER BY t.id
""")
# What a tenant's usage cost by its records, by its sums, and by the ledger's legs of each kind.
_CAUSES: Final = sa.text("""
WITH records AS (
    SELECT tenant_id, sum(amount_nanos) AS nanos FROM usage_records GROUP BY 1
), adjustments AS (
    SELECT tenant_id, sum(amount_nanos) AS nanos FROM usage_adjustments GROUP BY 1
), amendments AS (
    SELECT tenant_id, sum(CASE part WHEN 'reversal' THEN -amount_nanos ELSE amount_nanos END) AS nanos
    FROM usage_amendments GROUP BY 1
), legs AS (
    SELECT a.tenant_id,
        coalesce(sum(e.amount_nanos) FILTER (WHERE t.kind = 'usage'), 0) AS usage,
        coalesce(sum(e.amount_nanos) FILTER (WHERE t.kind = 'adjustment'), 0) AS adjustment,
        coalesce(sum(e.amount_nanos) FILTER (WHERE t.kind = 'amendment'), 0) AS amendment
    FROM accounts a JOIN entries e ON e.account_id = a.id JOIN transfers t ON t.id = e.transfer_id
    WHERE a.kind = 'usage_unbilled' AND t.kind IN ('usage', 'adjustment', 'amendment') GROUP BY 1
)
SELECT tenant_id,
    coalesce(r.nanos, 0)::bigint AS usage_cause, coalesce(l.usage, 0)::bigint AS usage_leg,
    coalesce(j.nanos, 0)::bigint AS adjustment_cause, coalesce(l.adjustment, 0)::bigint AS adjustment_leg,
    coalesce(m.nanos, 0)::bigint AS amendment_cause, coalesce(l.amendment, 0)::bigint AS amendment_leg
FROM records r FULL JOIN adjustments j USING (tenant_id) FULL JOIN amendments m USING (tenant_id)
FULL JOIN legs l USING (tenant_id)
WHERE coalesce(r.nanos, 0) <> coalesce(l.usage, 0) OR coalesce(j.nanos, 0) <> coalesce(l.adjustment, 0)
    OR coalesce(m.nanos, 0) <> coalesce(l.amendment, 0)
ORDER BY tenant_id
""")
_SUMS: Final = sa.text("""
WITH records AS (
    SELECT tenant_id, base_model, date_trunc('hour', settled_at, 'UTC') AS hour,
        sum(input_tokens + output_tokens) AS tokens, sum(kv_page_ms) AS kv_page_ms, sum(amount_nanos) AS nanos
    FROM usage_now GROUP BY 1, 2, 3
), sums AS (
    SELECT tenant_id, base_model, hour, sum(input_tokens + output_tokens) AS tokens, sum(kv_page_ms) AS kv_page_ms,
        sum(input_nanos + cached_input_nanos + output_nanos + kv_nanos) AS nanos
    FROM usage_hours GROUP BY 1, 2, 3
)
SELECT tenant_id, base_model, hour,
    coalesce(r.tokens, 0)::bigint AS tokens, coalesce(s.tokens, 0)::bigint AS tokens_summed,
    coalesce(r.kv_page_ms, 0)::bigint AS kv_page_ms, coalesce(s.kv_page_ms, 0)::bigint AS kv_page_ms_summed,
    coalesce(r.nanos, 0)::bigint AS nanos, coalesce(s.nanos, 0)::bigint AS nanos_summed
FROM records r FULL JOIN sums s USING (tenant_id, base_model, hour)
WHERE (coalesce(r.tokens, 0), coalesce(r.kv_page_ms, 0), coalesce(r.nanos, 0))
    IS DISTINCT FROM (coalesce(s.tokens, 0), coalesce(s.kv_page_ms, 0), coalesce(s.nanos, 0))
ORDER BY hour, tenant_id, base_model
""")
_DAY_SUMS: Final = sa.text("""
WITH hours AS (
    SELECT tenant_id, base_model, date_trunc('day', hour, 'UTC') AS hour,
        sum(input_tokens + output_tokens) AS tokens, sum(kv_page_ms) AS kv_page_ms,
        sum(input_nanos + cached_input_nanos + output_nanos + kv_nanos) AS nanos
    FROM usage_hours GROUP BY 1, 2, 3
), days AS (
    SELECT tenant_id, base_model, day AS hour, sum(input_tokens + output_tokens) AS tokens,
        sum(kv_page_ms) AS kv_page_ms, sum(input_nanos + cached_input_nanos + output_nanos + kv_nanos) AS nanos
    FROM usage_days GROUP BY 1, 2, 3
)
SELECT tenant_id, base_model, hour,
    coalesce(h.tokens, 0)::bigint AS tokens, coalesce(d.tokens, 0)::bigint AS tokens_summed,
    coalesce(h.kv_page_ms, 0)::bigint AS kv_page_ms, coalesce(d.kv_page_ms, 0)::bigint AS kv_page_ms_summed,
    coalesce(h.nanos, 0)::bigint AS nanos, coalesce(d.nanos, 0)::bigint AS nanos_summed
FROM hours h FULL JOIN days d USING (tenant_id, base_model, hour)
WHERE (coalesce(h.tokens, 0), coalesce(h.kv_page_ms, 0), coalesce(h.nanos, 0))
    IS DISTINCT FROM (coalesce(d.tokens, 0), coalesce(d.kv_page_ms, 0), coalesce(d.nanos, 0))
ORDER BY hour, tenant_id, base_model
""")
# ``lows`` are the first request ids of each hour, in order: a search in them is far cheaper than to decode every id.
_REPLICA_SUMS: Final = sa.text("""
WITH records AS (
    SELECT (CAST(:hours AS timestamptz[]))[
            width_bucket(CAST(request_id AS text) COLLATE "C", CAST(:lows AS text[]))
        ] AS hour, replica_id, tenant_id, base_model,
        sum(input_tokens - aborted_prefill_tokens + output_tokens) AS tokens,
        coalesce(sum(kv_page_ms) FILTER (WHERE kv_measured), 0) AS kv_page_ms
    FROM usage_records GROUP BY 1, 2, 3, 4
), sums AS (
    SELECT hour, replica_id, tenant_id, base_model, input_tokens - aborted_prefill_tokens + output_tokens AS tokens,
        kv_measured_page_ms AS kv_page_ms
    FROM usage_replica_hours
)
SELECT hour, replica_id, tenant_id, base_model,
    coalesce(r.tokens, 0)::bigint AS tokens, coalesce(s.tokens, 0)::bigint AS tokens_summed,
    coalesce(r.kv_page_ms, 0)::bigint AS kv_page_ms, coalesce(s.kv_page_ms, 0)::bigint AS kv_page_ms_summed
FROM records r FULL JOIN sums s USING (hour, replica_id, tenant_id, base_model)
WHERE (coalesce(r.tokens, 0), coalesce(r.kv_page_ms, 0))
    IS DISTINCT FROM (coalesce(s.tokens, 0), coalesce(s.kv_page_ms, 0))
ORDER BY hour, replica_id, tenant_id, base_model
""")
_PARTS: Final[tuple[tuple[DifferenceUnit, str], ...]] = (
    ("token", "tokens"),
    ("page_millisecond", "kv_page_ms"),
    ("nanodollar", "nanos"),
)


def check_new(session: Session, since: datetime) -> list[Difference]:
    """The transfers and invoices that were written since then."""
    first = first_id_of_ms("tr", clock.to_ms(since))
    return [*_transfers(session, first), *check_invoices(session, since)]


def check_all(session: Session) -> list[Difference]:
    """Every transfer and invoice; causes against transfers, by tenant; sums against records, by tenant and hour."""
    beginning = clock.from_ms(0)
    return [
        *_transfers(session, _FIRST_TRANSFER),
        *check_invoices(session, beginning),
        *_causes(session),
        *_sums(session),
        *_replica_sums(session),
    ]


def _transfers(session: Session, first: str) -> Iterator[Difference]:
    allowed = [f"{kind} {account}" for kind, accounts in ACCOUNTS.items() for account in accounts]
    for row in _rows(session, _WRONG_ACCOUNTS, first=first, allowed=allowed):
        yield Difference(
            kind="transfer_accounts",
            subject=f"{row['id']}: {row['kind']} on {row['account']}",
            unit="nanodollar",
            expected=0,
            found=row["amount_nanos"],
            tenant_id=row["tenant_id"],
        )
    for row in _rows(session, _UNBALANCED, first=first):
        yield Difference(
            kind="transfer_balance",
            subject=f"{row['id']}: {row['legs']} legs",
            unit="nanodollar",
            expected=0,
            found=row["nanos"],
        )


def _causes(session: Session) -> Iterator[Difference]:
    for row in _rows(session, _CAUSES):
        for kind in ("usage", "adjustment", "amendment"):
            if row[f"{kind}_cause"] != row[f"{kind}_leg"]:
                yield Difference(
                    kind="records_transfers" if kind == "usage" else "adjustments_transfers",
                    subject=f"{row['tenant_id']}: {kind}",
                    unit="nanodollar",
                    expected=row[f"{kind}_cause"],
                    found=row[f"{kind}_leg"],
                    tenant_id=row["tenant_id"],
                )


def _sums(session: Session) -> Iterator[Difference]:
    for row in _rows(session, _SUMS):
        yield from _summed(row, "usage_hours")
    for row in _rows(session, _DAY_SUMS):
        yield from _summed(row, "usage_days")


def _replica_sums(session: Session) -> Iterator[Difference]:
    hours = list(
        session.connection()
        .execute(sa.text("SELECT DISTINCT hour FROM usage_replica_hours WHERE hour > to_timestamp(0) ORDER BY 1"))
        .scalars()
    )
    if hours:
        lows = [first_id_of_ms("req", clock.to_ms(hour)) for hour in hours]
        for row in _rows(session, _REPLICA_SUMS, hours=hours, lows=lows):
            yield from _summed(row, "usage_replica_hours")


def _summed(row: dict[str, Any], table: str) -> Iterator[Difference]:  # any column
    for unit, name in _PARTS:
        if name in row and row[name] != row[f"{name}_summed"]:
            yield Difference(
                kind="sums_records",
                subject=table,
                unit=unit,
                expected=row[name],
                found=row[f"{name}_summed"],
                replica_id=row.get("replica_id"),
                tenant_id=row["tenant_id"],
                base_model=row["base_model"],
                hour=row["hour"],
            )


def _rows(session: Session, statement: sa.TextClause, **parameters: Any) -> list[dict[str, Any]]:  # any column
    return [dict(row) for row in session.connection().execute(statement, parameters).mappings()]
