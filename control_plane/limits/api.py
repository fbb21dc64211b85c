"""Routes over how tenants pay and what they may spend."""

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from billing.limits.views import SpendingView, SpendLimitView
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.limits import service
from control_plane.limits.schemas import NewSpendLimit, SpendingPatch
from control_plane.paging import Page
from core.db import unit_of_work


class AdminSpending(Controller):
    """How one tenant pays."""

    path = "/tenants/{tenant_id:str}/spending"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def get_spending(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> SpendingView:
        """Get how the tenant pays, what it owes, and what it may still spend."""
        with unit_of_work(engine) as session:
            return service.read_spending(session, tenant_id)

    @patch(sync_to_thread=True)
    def change_spending(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[SpendingPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> SpendingView:
        """Change how the tenant pays: prepaid or by invoice, its credit limit, at which amount it is invoiced before
        the period ends, at which balances it is alerted, and its auto top-up.
        """
        with unit_of_work(engine) as session:
            return service.change_spending(session, tenant_id, data, actor=principal.key_id)


class SpendLimits(Controller):
    """The calling tenant's own hard limits on spending."""

    path = "/spend-limits"
    tags = ("spending limits",)

    @post(sync_to_thread=True, opt={"scope": "keys:write"})
    def set_spend_limit(
        self,
        data: JSONBody[NewSpendLimit],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[SpendLimitView]:
        """Limit what the tenant, one key or one adapter may spend in each day or month of the tenant's time zone. At
        the limit, new requests are refused until the window ends; running ones finish.
        """
        return idempotent.run(
            lambda session: service.set_limit(session, principal.own_tenant_id, data, actor=principal.key_id)
        )

    @get(sync_to_thread=True, opt={"scope": "billing:read", "while_suspended": True})
    def list_spend_limits(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Page[SpendLimitView]:
        """List the tenant's limits with what is spent of them in the window of now."""
        with unit_of_work(engine) as session:
            return service.list_limits(session, principal.own_tenant_id)

    @delete("/{limit_id:str}", sync_to_thread=True, opt={"scope": "keys:write"})
    def delete_spend_limit(
        self, limit_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Remove a limit."""
        with unit_of_work(engine) as session:
            service.delete_limit(session, principal.own_tenant_id, limit_id, actor=principal.key_id)
