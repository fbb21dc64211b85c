"""Compares each invoice with its lines, its transfer, its link in the chain of documents, and the usage of its period.
A close reads that usage by a different query, so both must agree.

An invoice bills what settled since the end of the tenant's invoice before it, and late usage that waited for it. So
each usage is on one invoice, waits for the next one with its period, or is of the open period. The lines that a void
invoice left to another one are compared with its own.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.prices.quantities import AMOUNT_SQL, QUANTITIES, each_quantity
from billing.reconciliation.differences import Difference, DifferenceKind, DifferenceUnit, unit_of
from core.money import NANOS_PER_CENT, round_to_cents

# An invoice against its lines and credits, its transfer, and its place in the chain of documents.
_INVOICES: Final = sa.text("""
SELECT i.id, i.tenant_id, i.amount_nanos, i.net_cents, i.tax_cents, i.total_cents, l.nanos, l.cents - c.cents AS cents,
    i.amount_nanos - c.nanos AS charged_nanos, t.receivable, t.tax_payable, t.usage_unbilled, d.documents
FROM invoices i
LEFT JOIN LATERAL (
    SELECT coalesce(sum(amount_nanos), 0)::bigint AS nanos, coalesce(sum(amount_cents), 0)::bigint AS cents
    FROM invoice_lines WHERE invoice_id = i.id
) l ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(amount_nanos), 0)::bigint AS nanos, coalesce(sum(amount_cents), 0)::bigint AS cents
    FROM invoice_credits WHERE invoice_id = i.id
) c ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(e.amount_nanos) FILTER (WHERE a.kind = 'receivable'), 0)::bigint AS receivable,
        coalesce(sum(e.amount_nanos) FILTER (WHERE a.kind = 'tax_payable'), 0)::bigint AS tax_payable,
        coalesce(sum(e.amount_nanos) FILTER (WHERE a.kind = 'usage_unbilled'), 0)::bigint AS usage_unbilled
    FROM transfers t JOIN entries e ON e.transfer_id = t.id JOIN accounts a ON a.id = e.account_id
    WHERE t.invoice_id = i.id
) t ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS documents FROM documents WHERE document_id = i.id AND kind = 'invoice' AND sha256 <> ''
) d ON true
WHERE i.created_at >= :since AND (
    i.amount_nanos <> l.nanos OR i.net_cents <> l.cents - c.cents OR d.documents <> 1
    OR t.receivable <> i.total_cents * :cent OR t.tax_payable <> -i.tax_cents * :cent
    OR t.usage_unbilled <> c.nanos - i.amount_nanos
    OR abs(i.amount_nanos - c.nanos - i.net_cents * :cent) * 2 > :cent
)
ORDER BY i.id
""")
# Billed against used, per invoice and per tenant with waiting periods. Whole hours come from usage_hours, the two
# partial hours from records; so the cost grows with hours, not requests. No usage of this time can be added or amended.
_USED: Final = f"{each_quantity('{count} AS {kind}')}, {AMOUNT_SQL} AS nanos"
_USAGE: Final = sa.text(f"""
WITH billed AS (
    SELECT i.id AS subject, i.tenant_id, b.period_end AS begins, i.period_end AS ends,
        i.amount_nanos + i.carried_nanos - coalesce(b.carried_nanos, 0) - coalesce(v.nanos, 0) AS nanos
    FROM invoices i LEFT JOIN LATERAL (
        SELECT period_end, carried_nanos FROM invoices
        WHERE tenant_id = i.tenant_id AND period_end < i.period_end ORDER BY period_end DESC LIMIT 1
    ) b ON true
    LEFT JOIN LATERAL (
        SELECT sum(amount_nanos) AS nanos FROM carried_periods
        WHERE tenant_id = i.tenant_id AND invoice_id IS NOT NULL AND billed_until >= b.period_end
            AND billed_until < i.period_end
    ) v ON true
    WHERE i.created_at >= :since
  UNION ALL
    SELECT c.tenant_id, c.tenant_id, max(b.period_end), max(c.period_end), sum(c.amount_nanos)
    FROM carried_periods c LEFT JOIN LATERAL (
        SELECT max(period_end) AS period_end FROM invoices WHERE tenant_id = c.tenant_id
    ) b ON true
    WHERE b.period_end IS NULL OR c.period_end > b.period_end
    GROUP BY c.tenant_id HAVING max(c.created_at) >= :since
), lines AS (
    SELECT b.subject, l.kind, coalesce(l.used_units, l.quantity) AS units
    FROM billed b JOIN invoice_lines l ON l.invoice_id = b.subject
  UNION ALL
    SELECT b.subject, l.kind, coalesce(l.used_units, l.quantity)
    FROM billed b JOIN carried_periods c ON c.tenant_id = b.subject AND (b.begins IS NULL OR c.period_end > b.begins)
    CROSS JOIN LATERAL jsonb_to_recordset(c.lines) AS l (kind text, used_units numeric, quantity numeric)
  UNION ALL
    SELECT b.subject, l.kind, - coalesce(l.used_units, l.quantity)
    FROM billed b JOIN carried_periods c ON c.tenant_id = b.tenant_id AND c.invoice_id IS NOT NULL
        AND c.billed_until >= b.begins AND c.billed_until < b.ends AND b.subject <> b.tenant_id
    CROSS JOIN LATERAL jsonb_to_recordset(c.lines) AS l (kind text, used_units numeric, quantity numeric)
), units AS (
    SELECT subject, {each_quantity("sum(units * {scale}) FILTER (WHERE kind = '{kind}') AS {kind}")}
    FROM lines GROUP BY subject
), compared AS (
    SELECT b.subject, b.tenant_id,
        {each_quantity("coalesce(u.{kind}, 0)::bigint AS {kind}_used, coalesce(l.{kind}, 0)::bigint AS {kind}_billed")},
        (coalesce(u.nanos, 0) + a.nanos)::bigint AS nanos_used, b.nanos::bigint AS nanos_billed
    FROM billed b LEFT JOIN units l USING (subject)
    CROSS JOIN LATERAL (
        SELECT {each_quantity("sum(sign * {kind}) AS {kind}")}, sum(sign * nanos) AS nanos
        FROM (
            SELECT 1 AS sign, {_USED} FROM usage_hours
            WHERE tenant_id = b.tenant_id AND late_from = '1970-01-01T00:00:00Z'::timestamptz
                AND hour >= coalesce(date_trunc('hour', b.begins, 'UTC'), '-infinity')
                AND hour < date_trunc('hour', b.ends, 'UTC')
          UNION ALL
            SELECT 1, {_USED} FROM usage_hours
            WHERE tenant_id = b.tenant_id AND late_from > '1970-01-01T00:00:00Z'::timestamptz
                AND late_from >= coalesce(b.begins, '-infinity') AND late_from < b.ends
          UNION ALL
            SELECT 1, {_USED} FROM usage_now
            WHERE tenant_id = b.tenant_id AND late_from IS NULL
                AND settled_at >= date_trunc('hour', b.ends, 'UTC') AND settled_at < b.ends
          UNION ALL
            SELECT -1, {_USED} FROM usage_now
            WHERE tenant_id = b.tenant_id AND late_from IS NULL
                AND settled_at >= date_trunc('hour', b.begins, 'UTC') AND settled_at < b.begins
        ) parts
    ) u
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_nanos), 0) AS nanos FROM usage_adjustments
        WHERE tenant_id = b.tenant_id AND period_start < b.ends AND (b.begins IS NULL OR period_start >= b.begins)
    ) a
)
SELECT * FROM compared
WHERE ({each_quantity("{kind}_used")}, nanos_used) <> ({each_quantity("{kind}_billed")}, nanos_billed)
ORDER BY subject
""")  # noqa: S608 - constants of the table of quantities
_BILLED: Final[tuple[tuple[str, str, DifferenceUnit], ...]] = (
    *((kind, kind.replace("_", " "), unit_of(each.column)) for kind, each in QUANTITIES.items()),
    ("nanos", "amount", "nanodollar"),
)


def check_invoices(session: Session, since: datetime) -> Iterator[Difference]:
    """Every difference of the invoices, and of the periods that wait for one, that were made since then."""
    for row in session.connection().execute(_INVOICES, {"since": since, "cent": NANOS_PER_CENT}).mappings():
        yield from _own_parts(row)
        yield from _transfer(row)
    for row in session.connection().execute(_USAGE, {"since": since}).mappings():
        for name, words, unit in _BILLED:
            if row[f"{name}_used"] != row[f"{name}_billed"]:
                yield Difference(
                    kind="invoice_usage",
                    subject=f"{row['subject']}: {words}",
                    unit=unit,
                    expected=row[f"{name}_used"],
                    found=row[f"{name}_billed"],
                    tenant_id=row["tenant_id"],
                )


def _own_parts(row: sa.RowMapping) -> Iterator[Difference]:
    """An invoice beside its lines and credits, the rounding of its net, and its document."""
    charged_cents = round_to_cents(row["charged_nanos"])
    sides: tuple[tuple[DifferenceKind, str, DifferenceUnit, int, int], ...] = (
        ("invoice_lines", "", "nanodollar", row["nanos"], row["amount_nanos"]),
        ("invoice_lines", "", "cent", row["cents"], row["net_cents"]),
        ("invoice_lines", ": rounding", "cent", charged_cents, row["net_cents"]),
        ("invoice_document", "", "document", 1, row["documents"]),
    )
    for kind, what, unit, expected, found in sides:
        if expected != found:
            yield Difference(
                kind=kind, subject=f"{row['id']}{what}", unit=unit, expected=expected, found=found,
                tenant_id=row["tenant_id"],
            )  # fmt: skip


def _transfer(row: sa.RowMapping) -> Iterator[Difference]:
    """The legs of an invoice's transfer. What is left is the rounding, because a transfer sums to zero."""
    legs = (
        ("", row["total_cents"] * NANOS_PER_CENT, row["receivable"]),
        (": tax_payable", -row["tax_cents"] * NANOS_PER_CENT, row["tax_payable"]),
        (": usage_unbilled", -row["charged_nanos"], row["usage_unbilled"]),
    )
    for what, expected, found in legs:
        if expected != found:
            yield Difference(
                kind="invoice_transfer", subject=f"{row['id']}{what}", unit="nanodollar", expected=expected,
                found=found, tenant_id=row["tenant_id"],
            )  # fmt: skip
