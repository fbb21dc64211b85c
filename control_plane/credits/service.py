"""What admins do with tenants' credit, and what tenants see of it. ``billing.credits`` does the work; this room checks
that tenant and models exist, publishes the tenant, and adds audit rows and paging.
"""

from sqlmodel import Session

from billing.credits import balance, lots
from billing.credits.views import CreditEntryView, LotView
from billing.limits import terms
from billing.payments.operations import bought_with
from billing.payments.returned_payments import refund_bought
from control_plane.audit import service as audit
from control_plane.credits.schemas import NewCredit, OwnCredit
from control_plane.paging import Page, decode_cursor, encode_cursor
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.tenants import service as tenants
from core.errors import Conflict, InvalidRequest
from core.ids import new_id
from core.money import NANOS_PER_CENT


def grant(session: Session, tenant_id: str, new: NewCredit, *, actor: str) -> LotView:
    """Grant a lot. Raises NotFound for the tenant, and what ``billing.credits.lots`` raises."""
    tenants.get(session, tenant_id)
    if unknown := sorted(set(new.models).difference(base_models.ids(session))):
        raise InvalidRequest(
            f"models: {unknown[0]!r} is no base model. GET /api/v1/admin/base-models lists them.", param="models"
        )
    if new.reference is not None and bought_with(new.reference) is not None:
        raise InvalidRequest(
            f"reference: {new.reference!r} names a payment at Stripe, which grants its credit itself. Use a reference "
            "that does not begin with 'stripe:'.",
            param="reference",
        )
    lot = lots.grant(
        session,
        tenant_id=tenant_id,
        kind=new.kind,
        amount_nanos=new.amount_nanos,
        reference=new.reference or new_id("crl"),
        priority=new.priority,
        effective_from=new.effective_from,
        expires_at=new.expires_at,
        models=new.models,
    )
    _changed(session, lot, "granted", actor=actor, amount_nanos=new.amount_nanos)
    return lot


def refund(session: Session, tenant_id: str, lot_id: str, amount_nanos: int, *, actor: str) -> LotView:
    """Take unspent paid credit out of a lot, and return its money through Stripe if it was bought there."""
    tenants.get(session, tenant_id)
    lot = lots.refund_unspent(session, tenant_id=tenant_id, lot_id=lot_id, amount_nanos=amount_nanos)
    if (payment_intent := bought_with(lot.reference)) is not None:
        refund_bought(
            session,
            tenant_id=tenant_id,
            payment_intent=payment_intent,
            amount_cents=amount_nanos // NANOS_PER_CENT,
        )
    _changed(session, lot, "refunded", actor=actor, amount_nanos=amount_nanos)
    return lot


def void(session: Session, tenant_id: str, lot_id: str, *, actor: str) -> LotView:
    """Take everything unspent out of a lot. Raises Conflict for credit that was bought at Stripe."""
    tenants.get(session, tenant_id)
    if bought_with(lots.get_lot(session, tenant_id=tenant_id, lot_id=lot_id).reference) is not None:
        raise Conflict(
            f"The lot {lot_id} was bought at Stripe; refund what is unspent of it, which returns the money.",
            code="credit_lot_bought",
        )
    lot = lots.void_unspent(session, tenant_id=tenant_id, lot_id=lot_id)
    _changed(session, lot, "voided", actor=actor, amount_nanos=lot.voided_nanos)
    return lot


def get_lot(session: Session, tenant_id: str, lot_id: str) -> LotView:
    """One lot of a tenant. Raises NotFound."""
    tenants.get(session, tenant_id)
    return lots.get_lot(session, tenant_id=tenant_id, lot_id=lot_id)


def list_lots(session: Session, tenant_id: str, *, cursor: str | None, limit: int) -> Page[LotView]:
    """A tenant's lots, newest first. Raises NotFound for the tenant."""
    tenants.get(session, tenant_id)
    found = lots.page_of_lots(session, tenant_id, after=decode_cursor(cursor), limit=limit + 1)
    return Page(data=found[:limit], next_cursor=encode_cursor(found[limit - 1].id) if len(found) > limit else None)


def own_credit(session: Session, tenant_id: str) -> OwnCredit:
    """The tenant's credit now."""
    found = balance.read_balance(session, tenant_id)
    return OwnCredit(
        balance_nanos=found.balance_nanos,
        paid_nanos=found.paid_nanos,
        promotional_nanos=found.promotional_nanos,
        pending_nanos=found.pending_nanos,
        uncovered_nanos=found.uncovered_nanos,
        lots=found.lots,
        burn_down=found.burn_down,
    )


def list_entries(session: Session, tenant_id: str, *, cursor: str | None, limit: int) -> Page[CreditEntryView]:
    """The movements of the tenant's lots in the ledger, newest first."""
    found = lots.page_of_entries(session, tenant_id, after=decode_cursor(cursor), limit=limit + 1)
    following = encode_cursor(found[limit - 1].transfer_id) if len(found) > limit else None
    return Page(data=found[:limit], next_cursor=following)


def _changed(session: Session, lot: LotView, verb: str, *, actor: str, amount_nanos: int) -> None:
    terms.credit_changed(session, lot.tenant_id)
    publish_change(session, "tenants", lot.tenant_id)
    audit.record(
        session,
        actor=actor,
        action=f"credit.{verb}",
        target=lot.id,
        tenant_id=lot.tenant_id,
        details={"kind": lot.kind, "amount_nanos": amount_nanos, "reference": lot.reference},
    )
