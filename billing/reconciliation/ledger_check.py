"""Checks that the ledger, its causes and the invoices agree: each amount was written twice, so a difference is a defect
or a change by hand.

``check_new`` reads what was written since an instant, ``check_all`` everything, also the sums of usage against the
records that they are made of.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.ledger import AccountKind, TransferKind
from billing.prices.quantities import AMOUNT_SQL, AMOUNTS, COUNTED
from billing.reconciliation.differences import Difference, unit_of
from billing.reconciliation.invoice_check import check_invoices
from core import clock
from core.ids import first_id_of_ms

_FIRST_TRANSFER: Final = "tr_"
ACCOUNTS: Final[Mapping[TransferKind, tuple[AccountKind, ...]]] = {
    "usage": ("usage_unbilled", "revenue"),
    "adjustment": ("usage_unbilled", "revenue"),
    "amendment": ("usage_unbilled", "revenue"),
    "invoice": ("usage_unbilled", "receivable", "tax_payable", "rounding"),
    "credit_note": ("receivable", "bad_debt", "customer_balance", "cash", "revenue", "tax_payable"),
    "payment": ("receivable", "customer_balance", "cash"),
    "refund": ("customer_balance", "cash", "credits_paid", "credits_promotional", "promotions"),
    "void": (
        "usage_unbilled", "receivable", "customer_balance", "revenue", "tax_payable", "rounding",
        "credits_paid", "credits_promotional", "cash", "promotions",
    ),
    "write_off": ("receivable", "bad_debt", "cash"),
    "recovery": ("receivable", "bad_debt", "cash"),
    "credit_grant": ("credits_paid", "credits_promotional", "cash", "promotions"),
    "credit_burn": ("credits_paid", "credits_promotional", "usage_unbilled", "receivable"),
    "credit_lapse": ("credits_paid", "credits_promotional", "breakage", "promotions"),
    "balance": ("customer_balance", "receivable"),
}  # fmt: skip
"""By kind of transfer: every account that may have a leg of it. One on another account is a defect or made by hand."""

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


# The sums of usage and what they are made of. Only full runs compare them, which reads every record.
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
    FROM (
        SELECT request_id, replica_id, tenant_id, base_model, input_tokens, cached_tokens, aborted_prefill_tokens,
            output_tokens, kv_page_ms, kv_measured, estimated FROM usage_records
      UNION ALL
        SELECT request_id, replica_id, tenant_id, base_model, input_tokens, cached_tokens, aborted_prefill_tokens,
            output_tokens, kv_page_ms, kv_measured, false FROM yielded_usage
    ) computed
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


def check_new(session: Session, since: datetime) -> list[Difference]:
    """The transfers and invoices that were written since then."""
    first = first_id_of_ms("tr", clock.to_ms(since))
    return [*_transfers(session, first), *check_invoices(session, since)]


def check_all(session: Session) -> list[Difference]:
    """Every transfer and invoice; causes against transfers, by tenant; sums against what they are made of."""
    beginning = clock.from_ms(0)
    return [
        *_transfers(session, _FIRST_TRANSFER),
        *check_invoices(session, beginning),
        *_causes(session),
        *_sums(session),
    ]


def _transfers(session: Session, first: str) -> Iterator[Difference]:
    allowed = [f"{kind} {account}" for kind, accounts in ACCOUNTS.items() for account in accounts]
    for row in session.connection().execute(_WRONG_ACCOUNTS, {"first": first, "allowed": allowed}).mappings():
        yield Difference(
            kind="transfer_accounts",
            subject=f"{row['id']}: {row['kind']} on {row['account']}",
            unit="nanodollar",
            expected=0,
            found=row["amount_nanos"],
            tenant_id=row["tenant_id"],
        )
    for row in session.connection().execute(_UNBALANCED, {"first": first}).mappings():
        has_amount = row["nanos"] != 0
        yield Difference(
            kind="transfer_balance",
            subject=f"{row['id']}: {row['legs']} legs",
            unit="nanodollar" if has_amount else "document",  # a transfer without legs is no whole one
            expected=0 if has_amount else 1,
            found=row["nanos"],
        )


def _causes(session: Session) -> Iterator[Difference]:
    for row in session.connection().execute(_CAUSES).mappings():
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
    """Every sum that is not what it is made of: hours and replicas' hours of records, days of hours, months of days and
    adjustments. Each quantity and each part of an amount is compared by itself, so that two errors do not hide each
    other.
    """
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
