"""Books what payments report with the rooms of invoices and of credits. Each call is idempotent by its reference."""

from sqlmodel import Session

from billing.credits import lots
from billing.invoices import payments
from billing.invoices.queries import read_invoice
from core.money import cents_to_nanos


class TenoraBooks:
    """The seam of payments to invoices and credits."""

    def record_payment(self, session: Session, *, invoice_id: str, amount_cents: int, reference: str) -> int:
        """Book money of Stripe's for an invoice. Returns the cents beyond what is due, which are on the balance."""
        before = read_invoice(session, invoice_id)
        after = payments.record_payment(
            session, invoice_id=invoice_id, amount_cents=amount_cents, source="stripe", reference=reference
        )
        return max(0, amount_cents - (after.paid_cents - before.paid_cents))

    def amount_due_cents(self, session: Session, invoice_id: str) -> int:
        """What is still owed for an invoice."""
        return read_invoice(session, invoice_id).amount_due_cents

    def grant_top_up(self, session: Session, *, tenant_id: str, amount_cents: int, reference: str) -> None:
        """Add paid credit."""
        lots.grant(
            session, tenant_id=tenant_id, kind="paid", amount_nanos=cents_to_nanos(amount_cents), reference=reference
        )

    def take_back_top_up(self, session: Session, *, tenant_id: str, amount_cents: int, reference: str) -> int:
        """Take unspent credit out because its payment went back. Returns the cents that are spent already."""
        return lots.take_back(session, tenant_id=tenant_id, reference=reference, amount_cents=amount_cents)
