"""A tenant's routes over its adapters and their aliases. A moved alias is answered once every gateway has it, or after
a limited wait.
"""

from collections.abc import Callable

import msgspec
from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from redis import Redis
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.publishing.prefetch_hints import send_hints
from control_plane.registry.adapters import aliases, pins, service
from control_plane.registry.schemas import (
    AdapterPatch,
    AdapterView,
    AliasMoved,
    AliasTarget,
    AliasView,
    NewAdapter,
)
from control_plane.settings import WebSettings
from control_plane.tenants import service as tenants
from core.db import unit_of_work

_READ = {"scope": "adapters:read"}
_WRITE = {"scope": "adapters:write"}


class Adapters(Controller):
    """The adapters of the calling tenant."""

    path = "/adapters"
    tags = ("adapters",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_adapter(
        self,
        data: JSONBody[NewAdapter],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        web: NamedDependency[WebSettings],
    ) -> Response[AdapterView]:
        """Create an adapter: a name for a fine-tune of a base model. Its weights are uploaded as revisions. It counts
        against the plan once a revision is ready. A name whose revisions were all rejected is free again.
        """
        return idempotent.run(
            lambda session: service.create(
                session,
                data,
                tenant_id=principal.own_tenant_id,
                actor=principal.key_id,
                unready_max=web.adapters_unready_max,
            )
        )

    @get(sync_to_thread=True, opt=_READ)
    def list_adapters(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AdapterView]:
        """List the tenant's adapters, newest first, without those whose revisions were all rejected."""
        with unit_of_work(engine) as session:
            return service.list_adapters(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/{name:str}", sync_to_thread=True, opt=_READ)
    def get_adapter(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> AdapterView:
        """Get one adapter."""
        with unit_of_work(engine) as session:
            return service.get(session, tenant_id=principal.own_tenant_id, name=name)

    @patch("/{name:str}", sync_to_thread=True, opt=_WRITE)
    def change_adapter(
        self,
        name: FromPath[str],
        data: JSONBody[AdapterPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> AdapterView:
        """Pin or unpin an adapter, within the plan's limit. Replicas keep the revisions of a pinned adapter's name in
        host memory.
        """
        tenant_id = principal.own_tenant_id
        with unit_of_work(engine) as session:
            adapter = service.find(session, tenant_id=tenant_id, name=name)
            if data.pinned is not msgspec.UNSET:
                pins.set_pinned(session, adapter, pinned=data.pinned, actor=principal.key_id)
            return service.get(session, tenant_id=tenant_id, name=name)


class TenantAdapters(Controller):
    """The adapters of one tenant, for an admin."""

    path = "/tenants/{tenant_id:str}/adapters"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def list_tenant_adapters(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AdapterView]:
        """List a tenant's adapters, newest first."""
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            return service.list_adapters(session, tenant_id=tenant_id, cursor=cursor, limit=limit)


class Aliases(Controller):
    """The aliases of one of the tenant's adapters."""

    path = "/adapters/{name:str}/aliases"
    tags = ("adapters",)

    @get(sync_to_thread=True, opt=_READ)
    def list_aliases(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Page[AliasView]:
        """List an adapter's aliases by name, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=aliases.list_aliases(session, tenant_id=principal.own_tenant_id, name=name))

    @get("/{alias:str}", sync_to_thread=True, opt=_READ)
    def get_alias(
        self,
        name: FromPath[str],
        alias: FromPath[str],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> AliasView:
        """Get one alias."""
        with unit_of_work(engine) as session:
            return aliases.get(session, tenant_id=principal.own_tenant_id, name=name, alias=alias)

    @put("/{alias:str}", opt=_WRITE, sync_to_thread=True)
    def put_alias(
        self,
        name: FromPath[str],
        alias: FromPath[str],
        data: JSONBody[AliasTarget],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
        web: NamedDependency[WebSettings],
    ) -> AliasMoved:
        """Set the target of an alias: one revision, or several by weight. Use it for rollout, canary and rollback.
        Running requests finish on the revision that they started with.
        """

        def move(session: Session) -> aliases.AliasChange:
            return aliases.set_target(
                session,
                data,
                tenant_id=principal.own_tenant_id,
                name=name,
                alias=alias,
                actor=principal.key_id,
                settings=web,
            )

        return _moved(move, engine, redis)

    @delete("/{alias:str}", opt=_WRITE, status_code=200, sync_to_thread=True)
    def delete_alias(
        self,
        name: FromPath[str],
        alias: FromPath[str],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> AliasMoved:
        """Remove an alias. After the removal of `prod`, an adapter's name follows its newest ready revision."""

        def move(session: Session) -> aliases.AliasChange:
            return aliases.remove(
                session, tenant_id=principal.own_tenant_id, name=name, alias=alias, actor=principal.key_id
            )

        return _moved(move, engine, redis)


def _moved(move: Callable[[Session], aliases.AliasChange], engine: Engine, redis: Redis) -> AliasMoved:
    """Commit a change and send its hints. ``acknowledged_answers`` waits for gateways and adds what they said."""
    with unit_of_work(engine) as session:
        moved = move(session)
    send_hints(redis, moved.hints)
    return AliasMoved(alias=moved.alias, previous=moved.previous)
