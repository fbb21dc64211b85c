"""Routes over credit: an admin grants and takes back lots of a tenant; a tenant reads its own."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from billing.credits.views import CreditEntryView, LotView
from control_plane.auth.authenticate import Principal
from control_plane.credits import service
from control_plane.credits.schemas import CreditRefund, NewCredit, OwnCredit
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from core.db import unit_of_work


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
        return idempotent.run(lambda session: service.grant(session, tenant_id, data, actor=principal.key_id))

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
            return service.list_lots(session, tenant_id, cursor=cursor, limit=limit)

    @get("/{lot_id:str}", sync_to_thread=True)
    def get_credit_lot(
        self, tenant_id: FromPath[str], lot_id: FromPath[str], engine: NamedDependency[Engine]
    ) -> LotView:
        """Get one lot."""
        with unit_of_work(engine) as session:
            return service.get_lot(session, tenant_id, lot_id)

    @post("/{lot_id:str}/void", sync_to_thread=True, status_code=200)
    def void_credit(
        self,
        tenant_id: FromPath[str],
        lot_id: FromPath[str],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[LotView]:
        """Take everything unspent out of a lot that should not have been granted. What was used stays used."""
        return idempotent.run(
            lambda session: service.void(session, tenant_id, lot_id, actor=principal.key_id), status_code=200
        )

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
        return idempotent.run(
            lambda session: service.refund(session, tenant_id, lot_id, data.amount_nanos, actor=principal.key_id),
            status_code=200,
        )


class OwnCredits(Controller):
    """The credit of the calling tenant."""

    path = "/credits"
    tags = ("credits",)
    opt = {"scope": "billing:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_credit(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> OwnCredit:
        """Get the balance now, the lots with credit left in the order in which they burn, and the burn-down."""
        with unit_of_work(engine) as session:
            return service.own_credit(session, principal.own_tenant_id)

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
            return service.list_entries(session, principal.own_tenant_id, cursor=cursor, limit=limit)
