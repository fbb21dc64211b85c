"""Admin routes of pools and their revisions."""

from typing import Annotated

from litestar import Controller, Response, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from redis import Redis
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit, page_from
from control_plane.pools import decisions, service, tenant_demand
from control_plane.pools.schemas import (
    NewPool,
    NewPoolRevision,
    PoolDecisionView,
    PoolPatch,
    PoolRevisionChoice,
    PoolRevisionView,
    PoolView,
    TenantDemandList,
)
from core.db import unit_of_work

_Name = Annotated[str, PathParameter(max_length=63, description="Name of the pool.")]


class AdminPools(Controller):
    """Named sets of replicas: what they run, and how many there may be."""

    path = "/pools"
    tags = ("admin: pools",)

    @get(sync_to_thread=True)
    def list_pools(self, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> Page[PoolView]:
        """List all pools by name, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=service.every(session, redis))

    @post(sync_to_thread=True)
    def create_pool(
        self,
        data: JSONBody[NewPool],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[PoolView]:
        """Create a pool. It has no replicas before a revision is added and used."""
        return idempotent.run(lambda session: service.create(session, data, principal=principal))

    @get("/{pool:str}", sync_to_thread=True)
    def get_pool(self, pool: _Name, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> PoolView:
        """Get a pool, with its live replicas by revision and state."""
        with unit_of_work(engine) as session:
            return service.read(session, redis, pool)

    @patch("/{pool:str}", sync_to_thread=True)
    def change_pool(
        self,
        pool: _Name,
        data: JSONBody[PoolPatch],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> PoolView:
        """Change a pool's hardware label, how many replicas it may have, and its latency targets."""
        with unit_of_work(engine) as session:
            return service.change(session, redis, pool, data, principal=principal)

    @get("/{pool:str}/revisions", sync_to_thread=True)
    def list_pool_revisions(
        self, pool: _Name, engine: NamedDependency[Engine], cursor: PageCursor = None, limit: PageLimit = 50
    ) -> Page[PoolRevisionView]:
        """List a pool's revisions, the newest first."""
        with unit_of_work(engine) as session:
            return page_from(
                lambda after, limit: service.revisions(session, pool, after=after, limit=limit),
                cursor=cursor,
                limit=limit,
                key=lambda revision: str(revision.number),
            )

    @post("/{pool:str}/revisions", sync_to_thread=True)
    def add_pool_revision(
        self,
        pool: _Name,
        data: JSONBody[NewPoolRevision],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[PoolRevisionView]:
        """Add a revision: the newest one with these changes. It is not in force before it is used."""
        return idempotent.run(lambda session: service.add_revision(session, pool, data, principal=principal))

    @put("/{pool:str}/revision", sync_to_thread=True)
    def use_pool_revision(
        self,
        pool: _Name,
        data: JSONBody[PoolRevisionChoice],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> PoolView:
        """Put a revision in force, also an older one. Placers then replace the pool's replicas one by one, without
        breaking a stream.
        """
        with unit_of_work(engine) as session:
            return service.use(session, redis, pool, data.revision, principal=principal)

    @get("/{pool:str}/decisions", sync_to_thread=True)
    def list_pool_decisions(
        self, pool: _Name, engine: NamedDependency[Engine], cursor: PageCursor = None, limit: PageLimit = 50
    ) -> Page[PoolDecisionView]:
        """List the changes of the number of replicas that the pool should have, the newest first. The last 1,000 are
        kept.
        """
        with unit_of_work(engine) as session:
            return page_from(
                lambda after, limit: decisions.decisions(session, pool, after=after, limit=limit),
                cursor=cursor,
                limit=limit,
                key=lambda decision: str(decision.id),
            )


class AdminDemand(Controller):
    """Which tenants hold the replicas' pages, and which wait for them."""

    path = "/demand"
    tags = ("admin: pools",)

    @get(sync_to_thread=True)
    def list_tenant_demand(self, engine: NamedDependency[Engine], redis: NamedDependency[Redis]) -> TenantDemandList:
        """List the tenants that have running or waiting requests now, the longest waits first."""
        with unit_of_work(engine) as session:
            return tenant_demand.read(session, redis)
