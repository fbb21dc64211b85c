"""Routes of tenants: an admin's over all tenants, and a tenant's over itself."""

from typing import Annotated

import msgspec
from litestar import Controller, Response, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.change_handlers import ChangeHandlers
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.tenants import directory, service
from control_plane.tenants.directory import TenantSort
from control_plane.tenants.schemas import ListedTenant, Me, NewTenant, TenantPatch, TenantView
from core.db import unit_of_work


class AdminTenants(Controller):
    """All tenants."""

    path = "/tenants"
    tags = ("admin: tenants",)

    @post(sync_to_thread=True)
    def create_tenant(
        self,
        data: JSONBody[NewTenant],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[TenantView]:
        """Create a tenant on a plan."""
        return idempotent.run(lambda session: service.create(session, data, actor=principal.key_id))

    @get(sync_to_thread=True)
    def list_tenants(
        self,
        engine: NamedDependency[Engine],
        search: Annotated[
            str | None,
            QueryParameter(max_length=200, description="Only tenants with this text in their name or e-mail address."),
        ] = None,
        sort: Annotated[
            TenantSort, QueryParameter(description="`created`: newest first. `cost` and `near_limit`: largest first.")
        ] = "created",
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[ListedTenant]:
        """List tenants with what they used, were charged and cost this month. A search compares the text, in any case,
        with names, legal names and e-mail addresses, and with whole ids.
        """
        with unit_of_work(engine) as session:
            return directory.list_tenants(session, search=search, sort=sort, cursor=cursor, limit=limit)

    @get("/{tenant_id:str}", sync_to_thread=True)
    def get_tenant(self, tenant_id: FromPath[str], engine: NamedDependency[Engine]) -> TenantView:
        """Get one tenant."""
        with unit_of_work(engine) as session:
            return service.get(session, tenant_id)

    @patch("/{tenant_id:str}", sync_to_thread=True)
    def change_tenant(
        self,
        tenant_id: FromPath[str],
        data: JSONBody[TenantPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        change_handlers: NamedDependency[ChangeHandlers],
    ) -> TenantView:
        """Change a tenant's name, plan, status (active or suspended) or limit overrides, with their reason and end.
        Omitted fields keep their value. While a tenant is suspended, replicas unload its adapters.
        """
        with unit_of_work(engine) as session:
            tenant = service.change(session, tenant_id, data, actor=principal.key_id)
            if data.status is not msgspec.UNSET:
                change_handlers.on_status_set(session, tenant_id, data.status)
            change_handlers.on_limits_changed(session, [tenant_id])
            return tenant


class OwnTenant(Controller):
    """The tenant of the calling key."""

    path = "/me"
    tags = ("tenant",)
    opt = {"scope": None, "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_me(self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]) -> Me:
        """Get the tenant and the scopes of the calling key."""
        with unit_of_work(engine) as session:
            tenant = service.get_own(session, principal.own_tenant_id)
        return Me(tenant=tenant, key_id=principal.key_id, scopes=sorted(principal.scopes))
