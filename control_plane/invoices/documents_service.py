"""Corrects invoices, and keeps the details of their parties. ``billing`` does the work; this file adds audit rows."""

import msgspec
from sqlmodel import Session

from billing.invoices import balance, credit_note_queries
from billing.invoices.views import CreditNoteView, InvoiceView
from billing.invoicing import credit_notes, endings
from billing.payments.settlement import record_manual_payment
from billing.tax import profiles, rate_table
from billing.tax.parties import Buyer, Seller
from billing.tax.rate_table import TaxRateView
from control_plane.audit import service as audit
from control_plane.invoices.schemas import (
    AdminProfileBody,
    CustomerBalance,
    EndingReason,
    InvoiceVoid,
    NewCreditNote,
    NewPayment,
    NewTaxRate,
    ProfileBody,
    SellerBody,
)
from control_plane.paging import Page, decode_cursor, encode_cursor
from control_plane.tenants import service as tenants
from core.errors import NotFound


def issue_note(session: Session, invoice_id: str, note: NewCreditNote, *, actor: str) -> CreditNoteView:
    """Issue a credit note. Raises as ``credit_notes.issue_credit_note``."""
    _audit(session, "credit_note.issued", invoice_id, note, actor=actor)
    return credit_notes.issue_credit_note(session, invoice_id=invoice_id, actor=actor, **msgspec.structs.asdict(note))


def pay(session: Session, invoice_id: str, payment: NewPayment, *, actor: str) -> InvoiceView:
    """Record a payment by hand. Raises as ``settlement.record_manual_payment``."""
    _audit(session, "invoice.paid", invoice_id, payment, actor=actor)
    return record_manual_payment(
        session,
        invoice_id=invoice_id,
        amount_cents=payment.amount_cents,
        reference=payment.reference,
        actor=actor,
    )


def void(session: Session, invoice_id: str, body: InvoiceVoid, *, actor: str) -> InvoiceView:
    """Void an invoice. Raises as ``endings.void_invoice``."""
    ended = endings.void_invoice(session, invoice_id=invoice_id, actor=actor, **msgspec.structs.asdict(body))
    _audit(session, "invoice.voided", invoice_id, body, actor=actor, tenant_id=ended.tenant_id)
    return ended


def write_off(session: Session, invoice_id: str, body: EndingReason, *, actor: str) -> InvoiceView:
    """Write an invoice off. Raises as ``endings.write_off``."""
    ended = endings.write_off(session, invoice_id=invoice_id, reason=body.reason, actor=actor)
    _audit(session, "invoice.written_off", invoice_id, body, actor=actor, tenant_id=ended.tenant_id)
    return ended


def list_notes(session: Session, *, tenant_id: str | None, cursor: str | None, limit: int) -> Page[CreditNoteView]:
    """One tenant's credit notes, or all tenants' with None (admins only), newest first."""
    found = credit_note_queries.list_notes(session, tenant_id=tenant_id, after=decode_cursor(cursor), limit=limit + 1)
    following = encode_cursor(found[limit - 1].id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)


def get_note(session: Session, note_id: str, *, tenant_id: str) -> CreditNoteView:
    """One of the tenant's credit notes. Raises NotFound."""
    note = credit_note_queries.find_note(session, note_id)
    if note is None or note.tenant_id != tenant_id:
        raise NotFound("Credit note not found.", code="credit_note_not_found")
    return note


def customer_balance(session: Session, tenant_id: str) -> CustomerBalance:
    """What the platform owes the tenant."""
    return CustomerBalance(balance_cents=balance.balance_cents(session, tenant_id))


def get_profile(session: Session, tenant_id: str) -> Buyer:
    """A tenant's details. Raises NotFound for the tenant; before they are set, they have the tenant's name."""
    tenant = tenants.get(session, tenant_id)
    return profiles.read_buyer(session, tenant_id) or Buyer(legal_name=tenant.name)


def set_profile(session: Session, tenant_id: str, body: AdminProfileBody, *, actor: str) -> Buyer:
    """Set a tenant's details. Raises NotFound for the tenant, and InvalidRequest for an impossible VAT id."""
    tenants.get(session, tenant_id)
    buyer = profiles.set_buyer(session, tenant_id, Buyer(**msgspec.structs.asdict(body)))
    _audit(session, "billing_profile.changed", tenant_id, body, actor=actor, tenant_id=tenant_id)
    return buyer


def set_own_profile(session: Session, tenant_id: str, body: ProfileBody, *, actor: str) -> Buyer:
    """Set the calling tenant's details. Its exemption from tax and days to pay stay as admins have set them."""
    before = get_profile(session, tenant_id)
    whole = AdminProfileBody(
        **msgspec.structs.asdict(body),
        exempt_from=before.exempt_from,
        exempt_until=before.exempt_until,
        payment_days=before.payment_days,
    )
    return set_profile(session, tenant_id, whole, actor=actor)


def get_seller(session: Session) -> Seller:
    """The operator's details. Raises NotFound before they are set."""
    seller = profiles.read_seller(session)
    if seller is None:
        raise NotFound("The seller's details are not set. PUT them here.", code="seller_not_found")
    return seller


def set_seller(session: Session, body: SellerBody, *, actor: str) -> Seller:
    """Set the operator's details. Raises InvalidRequest for an impossible VAT id, or tax without a country."""
    seller = profiles.set_seller(session, Seller(**msgspec.structs.asdict(body)))
    _audit(session, "seller.changed", "seller", body, actor=actor)
    return seller


def add_rate(session: Session, rate: NewTaxRate, *, actor: str) -> TaxRateView:
    """Add a tax rate. Raises InvalidRequest for a past instant, and Conflict for one that is taken."""
    _audit(session, "tax_rate.added", f"{rate.country}/{rate.name}", rate, actor=actor)
    return rate_table.add_rate(session, **msgspec.structs.asdict(rate))


def list_rates(session: Session) -> list[TaxRateView]:
    """All tax rates."""
    return rate_table.list_rates(session)


def _audit(
    session: Session, action: str, target: str, body: msgspec.Struct, *, actor: str, tenant_id: str | None = None
) -> None:
    audit.record(
        session, actor=actor, action=action, target=target, tenant_id=tenant_id, details=msgspec.to_builtins(body)
    )
