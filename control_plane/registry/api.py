"""An admin's routes over base models. The routes of adapters, revisions and revocations are in those rooms."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.registry import base_models
from control_plane.registry.revisions import rank_classes
from control_plane.registry.schemas import BaseModelView, NewBaseModel
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

    return AdminBaseModels
