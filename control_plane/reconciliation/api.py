"""Admin routes over stored reconciliations, and over what one request is charged for: read, amend and void it."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from billing.reconciliation.views import ReconciliationRunDetail, ReconciliationRunView
from billing.usage.views import AmendedUsageView
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.reconciliation import service
from control_plane.reconciliation.schemas import AmendBody, VoidBody
from core.db import unit_of_work


class AdminReconciliations(Controller):
    """The stored results of reconciliation."""

    path = "/reconciliation/runs"
    tags = ("admin: billing",)

    @get(sync_to_thread=True)
    def list_reconciliations(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[ReconciliationRunView]:
        """List stored reconciliations, newest first. Billing makes one each hour."""
        with unit_of_work(engine) as session:
            return service.list_runs(session, cursor=cursor, limit=limit)

    @get("/{run_id:str}", sync_to_thread=True)
    def get_reconciliation(self, run_id: FromPath[str], engine: NamedDependency[Engine]) -> ReconciliationRunDetail:
        """Get a stored reconciliation with everything that differed."""
        with unit_of_work(engine) as session:
            return service.get_run(session, run_id)


class AdminRequestUsage(Controller):
    """What one request is charged for."""

    path = "/usage/{request_id:str}"
    tags = ("admin: billing",)

    @get(sync_to_thread=True)
    def get_request_usage(self, request_id: FromPath[str], engine: NamedDependency[Engine]) -> AmendedUsageView:
        """Get what a request is charged for, with its amendments."""
        with unit_of_work(engine) as session:
            return service.read_usage(session, request_id)

    @post("/amend", sync_to_thread=True)
    def amend_request_usage(
        self,
        request_id: FromPath[str],
        data: JSONBody[AmendBody],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[AmendedUsageView]:
        """Charge a request for other quantities, before its invoice. After the invoice, issue a credit note."""
        return idempotent.run(lambda session: service.amend(session, request_id, data, actor=principal.key_id))

    @post("/void", sync_to_thread=True)
    def void_request_usage(
        self,
        request_id: FromPath[str],
        data: JSONBody[VoidBody],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[AmendedUsageView]:
        """Charge a request nothing, before its invoice. After the invoice, issue a credit note."""
        return idempotent.run(
            lambda session: service.void(session, request_id, reason=data.reason, actor=principal.key_id)
        )
