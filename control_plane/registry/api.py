"""The routes over base models, an admin's and a tenant's. Adapters, revisions and revocations have their own rooms."""

from litestar import Controller, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry import base_models
from control_plane.registry.revisions import rank_classes
from control_plane.registry.schemas import BaseModelNames, BaseModelView, NewBaseModel
from core.db import unit_of_work


def admin_base_models(body_bytes_max: int) -> type[Controller]:
    """The admin's routes over base models. A spec contains a tokenizer, so its body may be larger than others."""

    class AdminBaseModels(Controller):
        """The base models that adapters are trained on."""

        path = "/base-models"
        tags = ("admin: base models",)

        @post(sync_to_thread=True, request_max_body_size=body_bytes_max)
        def register_base_model(
            self,
            data: JSONBody[NewBaseModel],
            idempotent: NamedDependency[IdempotentRequest],
            principal: NamedDependency[Principal],
        ) -> Response[BaseModelView]:
            """Register a base model. Registering the same spec again changes nothing; another spec under its id is
            refused.
            """

            def register(session: Session) -> BaseModelView:
                view = base_models.register(session, data, actor=principal.key_id)
                rank_classes.reclassify(session, view.id)
                return view

            return idempotent.run(register)

        @get(sync_to_thread=True)
        def list_base_models(
            self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
        ) -> Page[BaseModelView]:
            """List all base models."""
            with unit_of_work(engine) as session:
                return base_models.list_base_models(session, cursor=cursor, limit=limit)

        @put("/{base_model:str}/names", sync_to_thread=True)
        def set_base_model_names(
            self,
            base_model: FromPath[str],
            data: JSONBody[BaseModelNames],
            idempotent: NamedDependency[IdempotentRequest],
            principal: NamedDependency[Principal],
        ) -> Response[BaseModelView]:
            """Replace the further names of a base model: mirrors and quantized copies that adapters are trained on.
            Adapters that name one of them are accepted, with a note.
            """
            return idempotent.run(
                lambda session: base_models.set_names(session, base_model, data.names, actor=principal.key_id),
                status_code=200,
            )

    return AdminBaseModels


class BaseModels(Controller):
    """The base models that a tenant's adapters can be trained on."""

    path = "/base-models"
    tags = ("adapters",)

    @get(sync_to_thread=True, opt={"scope": "adapters:read"})
    def list_base_models_of_tenant(
        self, engine: NamedDependency[Engine], limit: PageLimit = 50, cursor: PageCursor = None
    ) -> Page[BaseModelView]:
        """List the base models, with their names on the Hub."""
        with unit_of_work(engine) as session:
            return base_models.list_base_models(session, cursor=cursor, limit=limit)
