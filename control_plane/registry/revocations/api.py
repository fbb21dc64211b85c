"""Routes of revocations: a tenant deletes an adapter and reads its own revocations, an admin those of all tenants."""

from litestar import Controller, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from redis import Redis
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.fleet import service as fleet
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry.revocations import service as revocations
from control_plane.registry.revocations import views as revocation_views
from control_plane.registry.revocations.views import RevocationView
from core.db import unit_of_work


class AdapterDeletion(Controller):
    """The deletion of an adapter."""

    path = "/adapters"
    tags = ("adapters",)

    @delete("/{name:str}", sync_to_thread=True, status_code=202, opt={"scope": "adapters:write"})
    def delete_adapter(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> RevocationView:
        """Delete an adapter and free its name. Running requests may finish; then every replica unloads the adapter, and
        finally the object store removes its files. /api/v1/revocations shows the progress under the id in the response.
        """
        with unit_of_work(engine) as session:
            row = revocations.delete_adapter(
                session, tenant_id=principal.own_tenant_id, name=name, actor=principal.key_id
            )
            return revocation_views.view(session, row, alive=None)


class OwnRevocations(Controller):
    """The revocations of the tenant's deleted or suspended adapters."""

    path = "/revocations"
    tags = ("adapters",)
    opt = {"scope": "adapters:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def list_revocations(
        self,
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[RevocationView]:
        """List the revocations, newest first."""
        alive = fleet.statuses(redis)
        with unit_of_work(engine) as session:
            return revocation_views.list_revocations(
                session, tenant_id=principal.tenant_id, alive=alive, cursor=cursor, limit=limit
            )

    @get("/{revocation_id:str}", sync_to_thread=True)
    def get_revocation(
        self,
        revocation_id: FromPath[str],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> RevocationView:
        """Get one revocation: its state, a receipt for each replica, and the replicas that have not confirmed."""
        alive = fleet.statuses(redis)
        with unit_of_work(engine) as session:
            return revocation_views.get(session, revocation_id, tenant_id=principal.tenant_id, alive=alive)


class AdminRevocations(OwnRevocations):
    """The revocations of all tenants."""

    tags = ("admin: replicas",)
