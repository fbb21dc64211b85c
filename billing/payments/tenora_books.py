"""Books what payments report with the rooms of invoices and of credits. Each call is idempotent by its reference."""

from sqlmodel import Session

from billing import ledger
from billing.credits import lots
from billing.invoices import payments
from billing.invoices.events import lock_invoices
from billing.invoices.queries import read_invoice
from billing.ledger import AccountRef, Leg, Posting, TransferKind
from billing.limits import terms
from billing.payments import outbox, returned_payments
from billing.payments.operations import RefundTopUp
from core.errors import Unprocessable
from core.ids import new_id
from core.money import cents_to_nanos, format_usd


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
        """Add paid credit, and raise what the tenant may spend by it. It is granted however many lots there are."""
        lots.grant(
            session,
            tenant_id=tenant_id,
            kind="paid",
            amount_nanos=cents_to_nanos(amount_cents),
            reference=reference,
            money_arrived=True,
        )
        terms.credit_changed(session, tenant_id, to_publish=True)

    def write_off(self, session: Session, *, amount_cents: int) -> str:
        """Book money that Stripe took as bad debt; below 0, money that came back. Returns the transfer."""
        nanos = cents_to_nanos(amount_cents)
        kind: TransferKind = "write_off" if nanos > 0 else "recovery"
        return _post(session, kind, AccountRef("bad_debt"), nanos)

    def return_to_balance(self, session: Session, *, tenant_id: str, amount_cents: int) -> str:
        """Put money that could not be returned on the tenant's balance. Returns the transfer."""
        lock_invoices(session, tenant_id)
        return _post(session, "refund", AccountRef("customer_balance", tenant_id), -cents_to_nanos(amount_cents))

    def take_back_top_up(self, session: Session, *, tenant_id: str, amount_cents: int, reference: str) -> int:
        """Take unspent credit out because its payment went back. Returns the cents that are spent already."""
        missing_cents = lots.take_back(session, tenant_id=tenant_id, reference=reference, amount_cents=amount_cents)
        terms.credit_changed(session, tenant_id, to_publish=True)
        return missing_cents

    def refunded_top_up_cents(self, session: Session, *, tenant_id: str, reference: str) -> int:
        """What refunds have taken out of credit, held until the transaction ends."""
        return lots.refunded_cents(session, tenant_id=tenant_id, reference=reference)


def refund_bought(session: Session, *, tenant_id: str, payment_intent: str, amount_cents: int) -> None:
    """Queue the return of money whose credit this transaction has taken out. Raises Unprocessable above what Stripe
    still has of the payment.
    """
    owed_cents, there_cents = returned_payments.returnable_cents(session, TenoraBooks(), payment_intent)
    if owed_cents > there_cents:
        left_nanos = cents_to_nanos(max(0, amount_cents - owed_cents + there_cents))
        raise Unprocessable(
            f"amount_nanos is {cents_to_nanos(amount_cents)}; Stripe can return {format_usd(left_nanos)} of this "
            "payment, because the rest went back before. Refund at most that.",
            code="refund_exceeds_payment",
            param="amount_nanos",
        )
    refund = RefundTopUp(refund_id=new_id("adj"), payment_intent=payment_intent, amount_cents=amount_cents)
    outbox.enqueue(session, tenant_id, refund)


def _post(session: Session, kind: TransferKind, account: AccountRef, nanos: int) -> str:
    """Move money between an account and the platform's cash: above 0, out of it."""
    legs = (Leg(account, nanos), Leg(AccountRef("cash"), -nanos))
    posting = Posting(transfer_id=new_id("tr"), kind=kind, legs=legs)
    ledger.post(session, posting)
    return posting.transfer_id
