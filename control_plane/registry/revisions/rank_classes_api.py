"""The admin's route that shows what rank classes cost and hold."""

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from redis import Redis
from sqlalchemy import Engine

from control_plane.fleet import service as fleet
from control_plane.paging import Page
from control_plane.registry.revisions import rank_classes
from control_plane.registry.schemas import RankClassView
from core.db import unit_of_work


class AdminRankClasses(Controller):
    """The pools of a base model by rank."""

    path = "/base-models/{base_model:str}/rank-classes"
    tags = ("admin: base models",)

    @get(sync_to_thread=True)
    def list_rank_classes(
        self, base_model: FromPath[str], engine: NamedDependency[Engine], redis: NamedDependency[Redis]
    ) -> Page[RankClassView]:
        """What a slot of each rank class costs in bytes and in KV pages, its live replicas, and the adapters in it."""
        alive = fleet.statuses(redis)
        with unit_of_work(engine) as session:
            return Page(data=rank_classes.show(session, base_model, alive))
