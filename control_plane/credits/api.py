"""Routes over credit: an admin grants and takes back lots of a tenant; a tenant reads its own."""

from functools import partial
from operator import attrgetter

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.credits import lots
from billing.credits.balance import read_balance
from billing.credits.views import CreditBalance, CreditEntryView, LotView
from billing.limits import ceilings
from billing.payments.operations import bought_with
from billing.payments.returned_payments import refund_bought
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.credits.schemas import CreditRefund, NewCredit
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest
from core.ids import new_id
from core.money import NANOS_PER_CENT


class AdminCredits(Controller):
    """The credit of one tenant."""

    path = "/tenants/{tenant_id:str}/credits"
    tags = ("admin: credits",)

    @post(sync_to_thread=True)
    def grant_credit(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[NewCredit],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[LotView]:
        """Grant a lot of credit. It is in force for usage that settles from now, or from `effective_from`, on."""
        return idempotent.run(lambda session: _grant(session, principal, tenant_id, data))

    @get(sync_to_thread=True)
    def list_credit_lots(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[LotView]:
        """List the tenant's lots, newest first, with those that are used or expired."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return page_from(partial(lots.page_of_lots, session, tenant_id), cursor=cursor, limit=limit)

    @get("/{lot_id:str}", sync_to_thread=True)
    def get_credit_lot(
        self, tenant_id: FromPath[str], lot_id: FromPath[str], engine: NamedDependency[Engine]
    ) -> LotView:
        """Get one lot."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return lots.get_lot(session, tenant_id=tenant_id, lot_id=lot_id)

    @post("/{lot_id:str}/void", sync_to_thread=True, status_code=200)
    def void_credit(
        self,
        tenant_id: FromPath[str],
        lot_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[LotView]:
        """Take everything unspent out of a lot that should not have been granted. What was used stays used."""

        def void(session: Session) -> LotView:
            tenants.require(session, tenant_id)
            if bought_with(lots.get_lot(session, tenant_id=tenant_id, lot_id=lot_id).reference) is not None:
                raise Conflict(
                    f"The lot {lot_id} was bought at Stripe; refund what is unspent of it, which returns the money.",
                    code="credit_lot_bought",
                )
            lot = lots.void_unspent(session, tenant_id=tenant_id, lot_id=lot_id)
            return _changed(session, principal, lot, "voided", amount_nanos=lot.voided_nanos)

        return idempotent.run(void, status_code=200)

    @post("/{lot_id:str}/refund", sync_to_thread=True, status_code=200)
    def refund_credit(
        self,
        tenant_id: FromPath[str],
        lot_id: FromPath[str],
        data: JSONBody[CreditRefund],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[LotView]:
        """Take unspent paid credit out of a lot because you have paid it back. This moves no money itself."""

        def refund(session: Session) -> LotView:
            tenants.require(session, tenant_id)
            lot = lots.refund_unspent(session, tenant_id=tenant_id, lot_id=lot_id, amount_nanos=data.amount_nanos)
            if (payment_intent := bought_with(lot.reference)) is not None:
                cents = data.amount_nanos // NANOS_PER_CENT
                refund_bought(session, tenant_id=tenant_id, payment_intent=payment_intent, amount_cents=cents)
            return _changed(session, principal, lot, "refunded", amount_nanos=data.amount_nanos)

        return idempotent.run(refund, status_code=200)


class OwnCredits(Controller):
    """The credit of the calling tenant."""

    path = "/credits"
    tags = ("credits",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_credit(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> CreditBalance:
        """Get the balance now, the lots with credit left in the order in which they burn, and the burn-down."""
        with unit_of_work(engine) as session:
            return read_balance(session, principal.own_tenant_id)

    @get("/entries", sync_to_thread=True)
    def list_credit_entries(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[CreditEntryView]:
        """List what moved the tenant's lots: grants, invoices, expiries and refunds, newest first."""
        with unit_of_work(engine) as session:
            read = partial(lots.page_of_entries, session, principal.own_tenant_id)
            return page_from(read, cursor=cursor, limit=limit, key=attrgetter("transfer_id"))


def _grant(session: Session, principal: Principal, tenant_id: str, new: NewCredit) -> LotView:
    tenants.require(session, tenant_id)
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
    fields = msgspec.structs.asdict(new) | {"reference": new.reference or new_id("crl")}
    lot = lots.grant(session, tenant_id=tenant_id, **fields)
    return _changed(session, principal, lot, "granted", amount_nanos=new.amount_nanos)


def _changed(session: Session, principal: Principal, lot: LotView, verb: str, *, amount_nanos: int) -> LotView:
    """Publish the tenant's new ceiling, and audit the change."""
    ceilings.refresh(session, lot.tenant_id)
    publish_change(session, "tenants", lot.tenant_id)
    details = {"kind": lot.kind, "amount_nanos": amount_nanos, "reference": lot.reference}
    audited(session, principal, f"credit.{verb}", lot.id, tenant_id=lot.tenant_id, details=details)
    return lot
