"""From the caller's ``model`` to what an engine is asked for, inside the caller's tenant only.

Another tenant's adapter is not looked at, so it cannot be told from one that does not exist.
"""

from dataclasses import dataclass
from typing import Final

from core.contracts import AdapterRoute, BaseModelRoute
from core.errors import NotFound
from data_plane.gateway.snapshot import Tables

_SHOWN_CHARS: Final = 128


@dataclass(frozen=True, slots=True)
class Target:
    """What serves a request. ``engine_name`` is what its engine knows it by."""

    shown_name: str
    base: BaseModelRoute
    adapter: AdapterRoute | None

    @property
    def engine_name(self) -> str:
        return self.base.id if self.adapter is None else self.adapter.engine_name


def resolve(tables: Tables, tenant_id: str, model: str) -> Target:
    """The tenant's own adapter of this name, else a base model by id or Hub name. Raises NotFound ``model_not_found``.

    A tenant's name wins over a base model's, so that a base model published later changes nothing for its callers.
    """
    adapter = tables.adapters.get(tenant_id, {}).get(model)
    if adapter is not None and (base := tables.base_models.get(adapter.base_model)) is not None:
        return Target(model, base, adapter)
    base = tables.base_models.get(model) or tables.hub_names.get(model)
    if base is None or adapter is not None:
        raise _not_found(model)
    return Target(model, base, None)


def describe(tables: Tables, tenant_id: str) -> list[dict[str, object]]:
    """What ``/v1/models`` lists: the tenant's adapters, then every base model."""
    adapters = sorted(tables.adapters.get(tenant_id, {}).values(), key=lambda route: route.name)
    bases = sorted(tables.base_models.values(), key=lambda route: route.id)
    return [_entry(route.name, route.created_at_ms, tenant_id, route.base_model) for route in adapters] + [
        _entry(route.id, route.created_at_ms, "tenora", None) for route in bases
    ]


def describe_one(tables: Tables, tenant_id: str, model: str) -> dict[str, object]:
    """One entry of the list. Raises NotFound as ``resolve`` does."""
    target = resolve(tables, tenant_id, model)
    if target.adapter is None:
        return _entry(target.base.id, target.base.created_at_ms, "tenora", None)
    return _entry(target.adapter.name, target.adapter.created_at_ms, tenant_id, target.adapter.base_model)


def _entry(model: str, created_at_ms: int, owner: str, parent: str | None) -> dict[str, object]:
    return {"id": model, "object": "model", "created": created_at_ms // 1000, "owned_by": owner, "parent": parent}


def _not_found(model: str) -> NotFound:
    shown = model if len(model) <= _SHOWN_CHARS else model[:_SHOWN_CHARS] + "…"
    return NotFound(
        f"The model `{shown}` does not exist or you do not have access to it.", code="model_not_found", param="model"
    )
