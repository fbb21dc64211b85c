"""Admin routes over replicas."""

from typing import Annotated, Final

from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, PathParameter
from redis import Redis
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.fleet import cordons, drains, service
from control_plane.fleet.drains import AdapterClasses
from control_plane.fleet.schemas import CordonView, DrainRequest, NewCordon, ReplicaView, ResidencyView
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page
from core.contracts.replicas import CORDON_TARGET, CordonKind
from core.db import unit_of_work

_NOT_FORCED: Final = DrainRequest()


class AdminReplicas(Controller):
    """All live replicas."""

    path = "/replicas"
    tags = ("admin: replicas",)

    @get(sync_to_thread=True)
    def list_replicas(self, redis: NamedDependency[Redis]) -> Page[ReplicaView]:
        """List all live replicas by id, on one page."""
        return Page(data=service.list_replicas(redis))

    @get("/{replica_id:str}/residency", sync_to_thread=True)
    def get_residency(self, replica_id: FromPath[str], redis: NamedDependency[Redis]) -> ResidencyView:
        """Get the adapters in each tier of a replica, as its engine reports them."""
        return service.residency(redis, replica_id)

    @post("/{replica_id:str}/drain", sync_to_thread=True, status_code=202)
    def drain_replica(
        self,
        replica_id: FromPath[str],
        redis: NamedDependency[Redis],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        adapter_classes: NamedDependency[AdapterClasses],
        data: JSONBody[DrainRequest] = _NOT_FORCED,
    ) -> Response[ReplicaView]:
        """Drain a replica: it accepts no new requests and finishes its running ones. The last ready replica that serves
        a base model, or a rank class with adapters, is refused with 409 unless `force` is true.
        """
        force = data.force
        return idempotent.run(
            lambda session: drains.drain(
                session, redis, replica_id, adapter_classes=adapter_classes, force=force, actor=principal.key_id
            ),
            status_code=202,
        )

    @delete("/{replica_id:str}/drain", sync_to_thread=True, status_code=202)
    def undo_drain(
        self,
        replica_id: FromPath[str],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> ReplicaView:
        """Undo a drain: the replica accepts requests again from its next heartbeat on. A replica that is stopping stays
        draining.
        """
        with unit_of_work(engine) as session:
            return drains.undo(session, redis, replica_id, actor=principal.key_id)


_Kind = Annotated[CordonKind, PathParameter(description="A replica, or all replicas of a node.")]
_Target = Annotated[
    str,
    PathParameter(pattern=rf"^{CORDON_TARGET}(?!\n)$", description="Id of a replica, or name of a node."),
]


class AdminCordons(Controller):
    """Replicas and nodes that get no requests, also after a restart."""

    path = "/cordons"
    tags = ("admin: replicas",)

    @get(sync_to_thread=True)
    def list_cordons(self, engine: NamedDependency[Engine]) -> Page[CordonView]:
        """List all cordons, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=cordons.every(session))

    @put("/{kind:str}/{target:str}", sync_to_thread=True)
    def put_cordon(
        self,
        kind: _Kind,
        target: _Target,
        data: JSONBody[NewCordon],
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
        adapter_classes: NamedDependency[AdapterClasses],
    ) -> CordonView:
        """Cordon a replica or all replicas of a node: they finish their running requests and get no new ones until the
        cordon is lifted, also after a restart. The last ready replicas that serve a base model, or a rank class with
        adapters, are refused with 409 unless `force` is true.
        """
        with unit_of_work(engine) as session:
            return cordons.put(session, redis, kind, target, data, adapter_classes=adapter_classes, principal=principal)

    @delete("/{kind:str}/{target:str}", sync_to_thread=True, status_code=200)
    def lift_cordon(
        self,
        kind: _Kind,
        target: _Target,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> CordonView:
        """Lift a cordon: the replicas get requests again within seconds."""
        with unit_of_work(engine) as session:
            return cordons.lift(session, kind, target, principal=principal)
