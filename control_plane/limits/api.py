"""Routes over how tenants pay and what they may spend."""

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from billing.limits import spend_limits, spending_settings
from billing.limits.spending_settings import SpendingPatch
from billing.limits.views import SpendingView, SpendLimitView
from control_plane.api_keys import service as api_keys
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.limits.schemas import NewSpendLimit
from control_plane.paging import Page
from control_plane.publishing.outbox import publish_change
from control_plane.registry.adapters import service as adapters
from control_plane.tenants import service as tenants
from core.db import unit_of_work
from core.errors import InvalidRequest, NotFound


class AdminSpending(Controller):
    """How one tenant pays."""

    path = "/tenants/{tenant_id:str}/spending"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def get_spending(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> SpendingView:
        """Get how the tenant pays, what it owes, and what it may still spend."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return spending_settings.read(session, tenant_id)

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
            tenants.require(session, tenant_id)
            changed = spending_settings.change(session, tenant_id, data)
            publish_change(session, "tenants", tenant_id)
            audited(session, principal, "tenant.spending_changed", tenant_id, tenant_id=tenant_id, details=data)
            return changed


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
        tenant_id = principal.own_tenant_id

        def set_limit(session: Session) -> SpendLimitView:
            _require_subject(session, tenant_id, data)
            fields = msgspec.structs.asdict(data) | {"subject_id": data.subject_id or ""}
            limit = spend_limits.set_limit(session, tenant_id=tenant_id, **fields)
            publish_change(session, "tenants", tenant_id)
            audited(session, principal, "spend_limit.set", limit.id, details={"limit": data})
            return limit

        return idempotent.run(set_limit)

    @get(sync_to_thread=True, opt={"scope": "billing:read", "while_suspended": True})
    def list_spend_limits(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Page[SpendLimitView]:
        """List the tenant's limits with what is spent of them in the window of now."""
        with unit_of_work(engine) as session:
            return Page(data=spend_limits.list_limits(session, principal.own_tenant_id))

    @delete("/{limit_id:str}", sync_to_thread=True, opt={"scope": "keys:write"})
    def delete_spend_limit(
        self, limit_id: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Remove a limit."""
        with unit_of_work(engine) as session:
            spend_limits.delete_limit(session, tenant_id=principal.own_tenant_id, limit_id=limit_id)
            publish_change(session, "tenants", principal.own_tenant_id)
            audited(session, principal, "spend_limit.deleted", limit_id)


def _require_subject(session: Session, tenant_id: str, new: NewSpendLimit) -> None:
    subject = new.subject_id
    if (subject is None) != (new.scope == "tenant"):
        raise InvalidRequest(
            f"subject_id: a limit of the scope {new.scope!r} "
            + ("has none; leave it out." if subject else "needs the id of what it limits."),
            param="subject_id",
        )
    if subject is not None and not _exists(session, tenant_id, new.scope, subject):
        raise InvalidRequest(f"subject_id: the tenant has no {new.scope} with the id {subject!r}.", param="subject_id")


def _exists(session: Session, tenant_id: str, scope: str, subject_id: str) -> bool:
    if scope == "adapter":
        return bool(adapters.names_of(session, tenant_id=tenant_id, adapter_ids={subject_id}))
    try:
        api_keys.get_key(session, tenant_id=tenant_id, key_id=subject_id)
    except NotFound:
        return False
    return True
