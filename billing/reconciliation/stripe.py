"""Compares the platform's cash with what moved it: each cent came from or went to Stripe, or was booked by hand. It
makes no call to Stripe, because a run must not depend on it: its objects are rows, written as Stripe reported them.

A payment by hand, credit that an admin granted or refunded, and a refund of money that was not paid at Stripe explain
themselves. All else must be the same in the books and at Stripe. Refunds that wait in a queue are not at Stripe yet.
"""

from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.differences import Difference, DifferenceUnit
from core.money import NANOS_PER_CENT

# Each transfer that moves cash, and what the row that caused it says. One that no row names has the cause 0.
_CASH: Final = sa.text("""
WITH causes AS (
    SELECT transfer_id, (amount_cents + surplus_cents) * :cent AS nanos FROM invoice_events
    WHERE source IN ('stripe', 'manual')
    UNION ALL
    SELECT e.transfer_id, e.amount_nanos FROM credit_entries e JOIN credit_lots l ON l.id = e.lot_id
    WHERE l.kind = 'paid' AND e.kind IN ('grant', 'refund', 'void')
    UNION ALL
    SELECT transfer_id, -refund_cents * :cent FROM credit_notes WHERE refund_cents > 0
    UNION ALL
    SELECT transfer_id, -booked_cents * :cent FROM returned_payments WHERE transfer_id IS NOT NULL
), caused AS (
    SELECT transfer_id, sum(nanos) AS nanos FROM causes GROUP BY transfer_id
), moved AS (
    SELECT e.transfer_id, sum(e.amount_nanos) AS nanos
    FROM entries e JOIN accounts a ON a.id = e.account_id WHERE a.kind = 'cash' GROUP BY e.transfer_id
)
SELECT transfer_id, NULL AS tenant_id, coalesce(c.nanos, 0)::bigint AS expected, coalesce(m.nanos, 0)::bigint AS found
FROM moved m FULL JOIN caused c USING (transfer_id)
WHERE coalesce(c.nanos, 0) <> coalesce(m.nanos, 0) ORDER BY transfer_id
""")
# Each payment that arrived at Stripe, and what is booked for it: on invoices, or as credit.
_RECEIVED: Final = sa.text("""
WITH booked AS (
    SELECT split_part(reference, ':', 2) AS payment_intent, amount_cents + surplus_cents AS cents
    FROM invoice_events WHERE source = 'stripe'
    UNION ALL
    SELECT split_part(l.reference, ':', 2), e.amount_nanos / :cent
    FROM credit_lots l JOIN credit_entries e ON e.lot_id = l.id AND e.kind = 'grant'
    WHERE l.kind = 'paid' AND l.reference LIKE 'stripe:%'
), sums AS (
    SELECT payment_intent, sum(cents) AS cents FROM booked GROUP BY payment_intent
)
SELECT payment_intent, r.tenant_id, coalesce(r.amount_cents, 0) AS expected, coalesce(b.cents, 0)::bigint AS found
FROM received_payments r FULL JOIN sums b USING (payment_intent)
WHERE coalesce(r.amount_cents, 0) <> coalesce(b.cents, 0) ORDER BY payment_intent
""")
# What was taken out of each purchase of credit, and what went back of it. The amount of a refund that waits, that an
# admin has cancelled, or that Stripe did not have, is taken out before it goes back.
_RETURNED_CREDIT: Final = sa.text("""
WITH returned AS (
    SELECT p.payment_intent, p.tenant_id, coalesce(sum(r.amount_cents - r.booked_cents), 0) AS cents
    FROM received_payments p JOIN payment_charges c ON c.id = p.charge_id AND c.invoice_id IS NULL
    LEFT JOIN returned_payments r USING (payment_intent) GROUP BY 1, 2
), waiting AS (
    SELECT content ->> 'payment_intent' AS payment_intent, sum(CASE state
        WHEN 'done' THEN coalesce((result ->> 'by_hand_cents')::bigint, 0)
        ELSE (content ->> 'amount_cents')::bigint END) AS cents
    FROM payment_operations WHERE kind = 'refund' AND content ->> 'payment_intent' IS NOT NULL GROUP BY 1
), taken AS (
    SELECT split_part(l.reference, ':', 2) AS payment_intent, -sum(e.amount_nanos) / :cent AS cents
    FROM credit_lots l JOIN credit_entries e ON e.lot_id = l.id AND e.kind IN ('refund', 'void')
    WHERE l.kind = 'paid' AND l.reference LIKE 'stripe:%' GROUP BY 1
), compared AS (
    SELECT payment_intent, tenant_id, found, greatest(gone, least(found, gone + waits)) AS expected
    FROM (
        SELECT payment_intent, r.tenant_id, coalesce(t.cents, 0) AS found, coalesce(r.cents, 0) AS gone,
            coalesce(w.cents, 0) AS waits
        FROM returned r FULL JOIN taken t USING (payment_intent) LEFT JOIN waiting w USING (payment_intent)
    ) sums
)
SELECT payment_intent, tenant_id, expected::bigint, found::bigint FROM compared
WHERE expected <> found ORDER BY payment_intent
""")
# What went back of the payments of invoices, and what credit notes refund: surely by operations that are done, perhaps
# by others. The part of a note that Stripe did not have is returned by hand.
_RETURNED_OF_INVOICES: Final = sa.text("""
WITH returned AS (
    SELECT p.tenant_id, sum(r.amount_cents - r.booked_cents) AS cents
    FROM returned_payments r JOIN received_payments p USING (payment_intent)
    JOIN payment_charges c ON c.id = p.charge_id AND c.invoice_id IS NOT NULL GROUP BY 1
), noted AS (
    SELECT tenant_id, sum((result ->> 'returned_cents')::bigint) FILTER (WHERE state = 'done') AS least,
        sum((content ->> 'amount_cents')::bigint) FILTER (WHERE (content ->> 'part')::int = 1) AS most
    FROM payment_operations WHERE kind = 'refund' AND content ->> 'invoice_id' IS NOT NULL GROUP BY 1
), compared AS (
    SELECT tenant_id, coalesce(r.cents, 0) AS expected,
        greatest(coalesce(n.least, 0), least(coalesce(r.cents, 0), coalesce(n.most, 0))) AS found
    FROM returned r FULL JOIN noted n USING (tenant_id)
)
SELECT tenant_id, expected::bigint, found::bigint FROM compared WHERE expected <> found ORDER BY tenant_id
""")


def check_stripe(session: Session) -> list[Difference]:
    """Every transfer, payment and tenant for which cash and what moved it are not the same."""
    checks: tuple[tuple[sa.TextClause, str, DifferenceUnit, str], ...] = (
        (_CASH, "transfer_id", "nanodollar", "cash and its cause"),
        (_RECEIVED, "payment_intent", "cent", "received and booked"),
        (_RETURNED_CREDIT, "payment_intent", "cent", "returned and taken from credit"),
        (_RETURNED_OF_INVOICES, "tenant_id", "cent", "refunds of invoices"),
    )
    return [
        Difference(
            kind="stripe",
            subject=f"{row[name]}: {what}",
            unit=unit,
            expected=row["expected"],
            found=row["found"],
            tenant_id=row["tenant_id"],
        )
        for statement, name, unit, what in checks
        for row in session.connection().execute(statement, {"cent": NANOS_PER_CENT}).mappings()
    ]
