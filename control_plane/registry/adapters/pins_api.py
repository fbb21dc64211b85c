"""The tenant's route that keeps an adapter in replicas' host memory."""

import msgspec
from litestar import Controller, patch
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.registry.adapters import pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.schemas import AdapterPatch, AdapterView
from core.db import unit_of_work


class AdapterChanges(Controller):
    """What can be changed of an adapter."""

    path = "/adapters"
    tags = ("adapters",)

    @patch("/{name:str}", sync_to_thread=True, opt={"scope": "adapters:write"})
    def change_adapter(
        self,
        name: FromPath[str],
        data: JSONBody[AdapterPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> AdapterView:
        """Pin an adapter, up to the plan's number, or let go of it: what its name serves stays in host memory."""
        tenant_id = principal.own_tenant_id
        with unit_of_work(engine) as session:
            adapter = adapters.find(session, tenant_id=tenant_id, name=name)
            if data.pinned is not msgspec.UNSET:
                pins.change(session, adapter, pinned=data.pinned, actor=principal.key_id)
            return adapters.get(session, tenant_id=tenant_id, name=name)
