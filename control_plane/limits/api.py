"""Routes over how tenants pay and what they may spend."""

from litestar import Controller, get, patch
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from billing.limits.views import SpendingView
from control_plane.auth.authenticate import Principal
from control_plane.limits import service
from control_plane.limits.schemas import SpendingPatch
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
