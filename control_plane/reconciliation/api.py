"""Admin routes over stored reconciliations, over a tenant's ledger, and over what one request is charged for: read,
amend and void it.
"""

from functools import partial

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.reconciliation import runs, tenant_ledger
from billing.reconciliation.views import (
    LedgerAccountView,
    LedgerTransferView,
    ReconciliationRunDetail,
    ReconciliationRunView,
)
from billing.usage import amendments
from billing.usage.amendments import AmendedQuantities
from billing.usage.views import AmendedUsageView
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.reconciliation.schemas import AmendBody, VoidBody
from control_plane.tenants import service as tenants
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
            return page_from(partial(runs.list_runs, session), cursor=cursor, limit=limit)

    @get("/{run_id:str}", sync_to_thread=True)
    def get_reconciliation(self, run_id: FromPath[str], engine: NamedDependency[Engine]) -> ReconciliationRunDetail:
        """Get a stored reconciliation with everything that differed."""
        with unit_of_work(engine) as session:
            return runs.read_run(session, run_id)


class AdminTenantLedger(Controller):
    """The ledger of one tenant, to read."""

    path = "/tenants/{tenant_id:str}/ledger"
    tags = ("admin: billing",)

    @get("/accounts", sync_to_thread=True)
    def list_ledger_accounts(
        self, tenant_id: FromPath[str], engine: NamedDependency[Engine]
    ) -> Page[LedgerAccountView]:
        """List the tenant's accounts with their balances, on one page."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return Page(data=tenant_ledger.accounts(session, tenant_id))

    @get("/transfers", sync_to_thread=True)
    def list_ledger_transfers(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[LedgerTransferView]:
        """List the transfers that touch the tenant's accounts, newest first. The legs of each sum to zero."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return page_from(partial(tenant_ledger.transfers, session, tenant_id), cursor=cursor, limit=limit)


class AdminRequestUsage(Controller):
    """What one request is charged for."""

    path = "/usage/{request_id:str}"
    tags = ("admin: billing",)

    @get(sync_to_thread=True)
    def get_request_usage(self, request_id: FromPath[str], engine: NamedDependency[Engine]) -> AmendedUsageView:
        """Get what a request is charged for, with its amendments."""
        with unit_of_work(engine) as session:
            return amendments.read_amended(session, request_id)

    @post("/amend", sync_to_thread=True)
    def amend_request_usage(
        self,
        request_id: FromPath[str],
        data: JSONBody[AmendBody],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[AmendedUsageView]:
        """Charge a request for other quantities, before its invoice. After the invoice, issue a credit note."""

        def amend(session: Session) -> AmendedUsageView:
            quantities = msgspec.convert(data, AmendedQuantities, from_attributes=True)
            found = amendments.amend(session, request_id, quantities, reason=data.reason, actor=principal.key_id)
            _audit(session, principal, "usage.amended", found, data.reason)
            return found

        return idempotent.run(amend)

    @post("/void", sync_to_thread=True)
    def void_request_usage(
        self,
        request_id: FromPath[str],
        data: JSONBody[VoidBody],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[AmendedUsageView]:
        """Charge a request nothing, before its invoice. After the invoice, issue a credit note."""

        def void(session: Session) -> AmendedUsageView:
            found = amendments.void(session, request_id, reason=data.reason, actor=principal.key_id)
            _audit(session, principal, "usage.voided", found, data.reason)
            return found

        return idempotent.run(void)


def _audit(session: Session, principal: Principal, action: str, found: AmendedUsageView, reason: str) -> None:
    details = {"recorded_nanos": found.recorded_nanos, "charged_nanos": found.charged_nanos, "reason": reason}
    audited(session, principal, action, found.request_id, tenant_id=found.tenant_id, details=details)
