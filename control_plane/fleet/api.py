"""Admin routes over replicas."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from redis import Redis
from sqlmodel import Session

from control_plane.audit import service as audit
from control_plane.auth.authenticate import Principal
from control_plane.fleet import service
from control_plane.fleet.schemas import ReplicaView, ResidencyView
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page


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
    ) -> Response[ReplicaView]:
        """Drain a replica: it accepts no new requests and finishes its running ones."""

        def drain(session: Session) -> ReplicaView:
            audit.record(session, actor=principal.key_id, action="replica.drained", target=replica_id)
            session.flush()  # a drain that cannot be recorded does not happen
            return service.drain(redis, replica_id)

        return idempotent.run(drain, status_code=202)
