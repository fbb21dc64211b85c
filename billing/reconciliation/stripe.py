"""Compares what arrived at Stripe for invoices with what is booked for them. It makes no call to Stripe, because a run
must not depend on it.

A tenant's received payments are what Stripe reported of each payment; the events of its invoices are what was booked.
What waits to be collected together with a later invoice is neither.
"""

from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.differences import Difference

_TENANTS: Final = sa.text("""
WITH received AS (
    SELECT tenant_id, sum(amount_cents)::bigint AS cents FROM received_payments
    WHERE stripe_invoice IS NOT NULL GROUP BY tenant_id
), booked AS (
    SELECT i.tenant_id, sum(e.amount_cents + e.surplus_cents)::bigint AS cents
    FROM invoice_events e JOIN invoices i ON i.id = e.invoice_id
    WHERE e.source = 'stripe' GROUP BY i.tenant_id
)
SELECT tenant_id, coalesce(r.cents, 0) AS received, coalesce(b.cents, 0) AS booked
FROM received r FULL JOIN booked b USING (tenant_id)
WHERE coalesce(r.cents, 0) <> coalesce(b.cents, 0)
ORDER BY tenant_id
""")


def check_stripe(session: Session) -> list[Difference]:
    """The tenants for whose invoices more or less money is booked than arrived at Stripe."""
    return [
        Difference(
            kind="stripe",
            subject=f"{row['tenant_id']}: payments of invoices",
            unit="cent",
            expected=row["received"],
            found=row["booked"],
            tenant_id=row["tenant_id"],
        )
        for row in session.connection().execute(_TENANTS).mappings()
    ]
