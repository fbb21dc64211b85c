"""Checks that the ledger, its causes and the invoices agree: each amount was written twice, so a difference is a defect
or a change by hand.

``check_new`` reads what was written since an instant, ``check_all`` everything, also the sums of usage against the
records that they are made of.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.ledger import AccountKind, TransferKind
from billing.reconciliation.differences import Difference
from billing.reconciliation.invoice_check import check_invoices
from billing.reconciliation.sums_check import check_sums
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
        *check_sums(session),
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
