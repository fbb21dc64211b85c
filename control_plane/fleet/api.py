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
from control_plane.idempotency.service import Once
from control_plane.paging import Page


class AdminReplicas(Controller):
    """Every replica that is alive."""

    path = "/replicas"
    tags = ("admin: replicas",)

    @get(sync_to_thread=True)
    def list_replicas(self, redis: NamedDependency[Redis]) -> Page[ReplicaView]:
        """Every live replica, by id, on one page."""
        return Page(data=service.list_replicas(redis))

    @get("/{replica_id:str}/residency", sync_to_thread=True)
    def get_residency(self, replica_id: FromPath[str], redis: NamedDependency[Redis]) -> ResidencyView:
        """Which adapters lie in which tier of a replica, by its engine's own account."""
        return service.residency(redis, replica_id)

    @post("/{replica_id:str}/drain", sync_to_thread=True, status_code=202)
    def drain_replica(
        self,
        replica_id: FromPath[str],
        redis: NamedDependency[Redis],
        once: NamedDependency[Once],
        principal: NamedDependency[Principal],
    ) -> Response[ReplicaView]:
        """Have a replica take no new requests; it finishes those it has."""
        drained = service.drain(redis, replica_id)

        def note(session: Session) -> ReplicaView:
            audit.record(session, actor=principal.key_id, action="replica.drained", target=replica_id)
            return drained

        return once.run(note, status_code=202)
