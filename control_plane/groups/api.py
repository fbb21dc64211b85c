"""Routes over groups of models: tenants have them for their own, and admins for the platform's."""

from typing import Annotated

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.groups import service
from control_plane.groups.schemas import ModelGroupPatch, ModelGroupView, NewModelGroup
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page
from core.db import unit_of_work

_Name = Annotated[str, PathParameter(max_length=63, description="Name of the group.")]
_READ = {"scope": "adapters:read"}
_WRITE = {"scope": "adapters:write"}


class ModelGroups(Controller):
    """The calling tenant's groups of models."""

    path = "/model-groups"
    tags = ("model groups",)

    @get(sync_to_thread=True, opt=_READ)
    def list_model_groups(
        self, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> Page[ModelGroupView]:
        """List the groups by name, on one page: a tenant's own, or, for admins, the platform's. `GET /v1/models` at the
        gateway lists every group that can be called.
        """
        with unit_of_work(engine) as session:
            return Page(data=service.every(session, principal))

    @post(sync_to_thread=True, opt=_WRITE)
    def create_model_group(
        self,
        data: JSONBody[NewModelGroup],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[ModelGroupView]:
        """Create a group: models in order of quality under one name, and the rule that chooses between them. The group
        `auto` is a tenant's default one. A group that an admin creates has base models alone, and every tenant may call
        it; a tenant's own model or group of the same name counts first for that tenant.
        """
        return idempotent.run(lambda session: service.create(session, data, principal))

    @get("/{group:str}", sync_to_thread=True, opt=_READ)
    def get_model_group(
        self, group: _Name, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> ModelGroupView:
        """Get one group."""
        with unit_of_work(engine) as session:
            return service.read(session, group, principal)

    @patch("/{group:str}", sync_to_thread=True, opt=_WRITE)
    def change_model_group(
        self,
        group: _Name,
        data: JSONBody[ModelGroupPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> ModelGroupView:
        """Change a group's members, its rule, or the rule's bounds."""
        with unit_of_work(engine) as session:
            return service.change(session, group, data, principal)

    @delete("/{group:str}", sync_to_thread=True, opt=_WRITE)
    def delete_model_group(
        self, group: _Name, engine: NamedDependency[Engine], principal: NamedDependency[Principal]
    ) -> None:
        """Remove a group. Its members stay."""
        with unit_of_work(engine) as session:
            service.delete(session, group, principal)


class AdminModelGroups(ModelGroups):
    """The platform's groups of base models, which every tenant may call."""

    tags = ("admin: model groups",)
