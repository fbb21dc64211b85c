"""Routes of the registry: an admin's over base models, and a tenant's over its adapters and their revisions."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import Once
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry import base_models
from control_plane.registry.adapters import service as adapters
from control_plane.registry.revisions import rank_classes
from control_plane.registry.schemas import (
    AdapterView,
    BaseModelView,
    NewAdapter,
    NewBaseModel,
)
from core.db import unit_of_work

_READ = {"scope": "adapters:read"}
_WRITE = {"scope": "adapters:write"}


def admin_base_models(body_bytes_max: int) -> type[Controller]:
    """The admin's routes over base models; a spec carries a tokenizer, so its body may be larger than others."""

    class AdminBaseModels(Controller):
        """What adapters are made for."""

        path = "/base-models"
        tags = ("admin: base models",)

        @post(sync_to_thread=True, request_max_body_size=body_bytes_max)
        def register_base_model(
            self, data: JSONBody[NewBaseModel], once: NamedDependency[Once], principal: NamedDependency[Principal]
        ) -> Response[BaseModelView]:
            """Register a base model. The same spec again changes nothing; another under its id is refused."""

            def register(session: Session) -> BaseModelView:
                view = base_models.register(session, data, actor=principal.key_id)
                rank_classes.reclassify(session, view.id)
                return view

            return once.run(register)

        @get(sync_to_thread=True)
        def list_base_models(
            self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
        ) -> Page[BaseModelView]:
            """Every base model."""
            with unit_of_work(engine) as session:
                return base_models.list_base_models(session, cursor=cursor, limit=limit)

    return AdminBaseModels


class Adapters(Controller):
    """The adapters of the tenant that is calling."""

    path = "/adapters"
    tags = ("adapters",)

    @post(sync_to_thread=True, opt=_WRITE)
    def create_adapter(
        self, data: JSONBody[NewAdapter], once: NamedDependency[Once], principal: NamedDependency[Principal]
    ) -> Response[AdapterView]:
        """A name for a fine-tune of a base model; its weights come as revisions."""
        return once.run(
            lambda session: adapters.create(session, data, tenant_id=principal.own_tenant_id, actor=principal.key_id)
        )

    @get(sync_to_thread=True, opt=_READ)
    def list_adapters(
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AdapterView]:
        """The tenant's adapters, newest first."""
        with unit_of_work(engine) as session:
            return adapters.list_adapters(session, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)

    @get("/{name:str}", sync_to_thread=True, opt=_READ)
    def get_adapter(
        self, name: FromPath[str], engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> AdapterView:
        """One adapter."""
        with unit_of_work(engine) as session:
            return adapters.get(session, tenant_id=principal.own_tenant_id, name=name)
