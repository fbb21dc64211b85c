"""What payments ask of the rooms that own invoices and credits. ``TenoraBooks`` calls them; each call is idempotent by
its reference and part of the caller's transaction.
"""

from typing import Protocol

from sqlmodel import Session


class Books(Protocol):
    """The seam to invoices and credits."""

    def record_payment(self, session: Session, *, invoice_id: str, amount_cents: int, reference: str) -> int:
        """Book money that arrived for an invoice; what is too much goes to the tenant's balance. Returns the surplus
        in cents.
        """

    def amount_due_cents(self, session: Session, invoice_id: str) -> int:
        """What is still owed for an invoice."""

    def grant_top_up(self, session: Session, *, tenant_id: str, amount_cents: int, reference: str) -> None:
        """Add paid credit."""

    def write_off(self, session: Session, *, amount_cents: int) -> str:
        """Book money that Stripe took and no document explains as bad debt; below 0, money that came back. Returns the
        transfer.
        """

    def return_to_balance(self, session: Session, *, tenant_id: str, amount_cents: int) -> str:
        """Put money that could not be returned to the tenant on its balance. Returns the transfer."""

    def take_back_top_up(self, session: Session, *, tenant_id: str, amount_cents: int, reference: str) -> int:
        """Take paid credit out again for money that went back; at most what is unspent. Returns the missing cents."""

    def refunded_top_up_cents(self, session: Session, *, tenant_id: str, reference: str) -> int:
        """What refunds have taken out of paid credit, which nothing else changes before the transaction ends."""
