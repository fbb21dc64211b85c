"""Resolves the caller's ``model`` to an adapter revision, a base model or a group, within the caller's tenant only,
and lists models.

Other tenants' adapters are never read, so a caller cannot tell them from adapters that do not exist.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.contracts.routes import PROD, AdapterRoute, BaseModelRoute, GroupMember, GroupRoute, RevisionRoute
from core.errors import InvalidRequest, NotFound
from core.rendezvous_hash import weighted_winner
from data_plane.gateway.api.chat_template import renders_tools
from data_plane.gateway.api.openai_request import Kind
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.snapshot import Tables

_SHOWN_CHARS: Final = 128
_SHOWN_REVISIONS: Final = 10
_LIMITS_SHOWN: Final = ("output_tokens", "requests_per_minute", "tokens_per_minute", "concurrent_requests")
_NO_ADAPTERS: Final[Mapping[str, AdapterRoute]] = {}
_NO_GROUPS: Final[Mapping[str, GroupRoute]] = {}


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """An adapter, and its revision that serves a request."""

    route: AdapterRoute
    revision: RevisionRoute


@dataclass(frozen=True, slots=True)
class Target:
    """The model that serves a request. ``adapter`` is None for the base model itself."""

    shown_name: str
    base: BaseModelRoute
    adapter: AdapterTarget | None

    @property
    def engine_name(self) -> str:
        """The name of this model in engines."""
        served = self.adapter
        return self.base.id if served is None else served.route.engine_name(served.revision.id)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a key's list of models may have for it."""
        return (self.base.id, self.base.hub_name) if self.adapter is None else (self.adapter.route.name,)

    @property
    def rank(self) -> int:
        """The adapter's LoRA rank; 0 for a base model."""
        return 0 if self.adapter is None else self.adapter.revision.rank


def resolve(tables: Tables, tenant_id: str, model: str, *, draw: str) -> Target:
    """The tenant's own adapter by ``name``, ``name:alias`` or ``name@revision``, else a base model by id or Hub name.
    ``draw`` selects among the revisions of a weighted alias: the same draw gives the same revision while the weights
    stay. Raises NotFound ``model_not_found``.

    A tenant's adapter takes precedence over a base model of the same name, so a base model that is published later
    changes nothing for the tenant's callers.
    """
    route, alias, weights = _find(tables, tenant_id, model)
    if route is None:
        base = tables.base_models.get(model) or tables.hub_names.get(model)
        if base is None:
            raise _not_found(model)
        return Target(model, base, None)
    base = tables.base_models.get(route.base_model)
    if base is None or not weights:
        raise _not_found(model, _unlisted(route) if model.startswith(f"{route.name}@") else "")
    chosen = weighted_winner(f"{route.adapter_id}:{alias}\0{draw}", weights)
    return Target(model, base, AdapterTarget(route, route.revisions[chosen]))


def require_callable(caller: Caller, model: str, *names: str) -> None:
    """Refuse a ``model`` of these names that the caller's key may not call. A key that may call a group may call its
    members through it. Raises NotFound ``model_not_found``.
    """
    if not caller.may_call(*names):
        raise _not_found(model, f" This key may call: {', '.join(caller.key.models or ())}.")


def require_task(target: Target, kind: Kind) -> None:
    """Refuse a call that the model's engines cannot answer. Raises InvalidRequest."""
    embeds = target.base.task == "embed"
    if kind == "embedding" and not embeds:
        raise InvalidRequest(
            f"`{target.shown_name}` makes no embeddings; choose a model with `capabilities.embeddings` in /v1/models.",
            code="model_makes_no_embeddings",
            param="model",
        )
    if embeds and kind in ("chat", "completion"):
        raise InvalidRequest(
            f"`{target.shown_name}` makes embeddings only; send its texts to /v1/embeddings, or choose another model.",
            code="model_makes_embeddings_only",
            param="model",
        )


def find_group(tables: Tables, tenant_id: str, model: str) -> GroupRoute | None:
    """The group that ``model`` names: the tenant's own, else the platform's. None where it names no group, or one of
    the tenant's adapters, which counts first.
    """
    if not tables.groups or model in tables.adapters.get(tenant_id, _NO_ADAPTERS):
        return None
    own = tables.groups.get(tenant_id, _NO_GROUPS).get(model)
    return own or tables.groups.get("", _NO_GROUPS).get(model)


def members_of(tables: Tables, group: GroupRoute, *, draw: str) -> list[tuple[GroupMember, Target]]:
    """The members of a group that can serve requests now, in the group's order: a deleted adapter cannot. Raises
    NotFound ``model_not_found`` where there is none.
    """
    found = []
    for member in group.members:
        with contextlib.suppress(NotFound):
            found.append((member, resolve(tables, group.tenant_id, member.model, draw=draw)))
    if not found:
        raise _not_found(group.name)
    return found


def describe(tables: Tables, caller: Caller) -> list[dict[str, Any]]:
    """The list for ``/v1/models``: the tenant's adapters, each followed by its aliases, groups, then every base model.
    It lists only names that a request may have.
    """
    tenant_id = caller.tenant.tenant_id
    own = tables.adapters.get(tenant_id, {})
    bases = sorted(tables.base_models.values(), key=lambda route: route.id)
    return [
        _adapter_entry(tables, caller, name, route)
        for route in sorted(own.values(), key=lambda route: route.name)
        if route.base_model in tables.base_models and caller.may_call(route.name)
        for name in (route.name, *(f"{route.name}:{alias}" for alias in sorted(route.aliases)))
        if _find(tables, tenant_id, name)[2]
    ] + [
        *_group_entries(tables, caller),
        *(
            _base_entry(caller, route)
            for route in bases
            if route.id not in own and caller.may_call(route.id, route.hub_name)
        ),
    ]


def describe_one(tables: Tables, caller: Caller, model: str) -> dict[str, Any]:
    """One entry of the list, or one revision. Raises NotFound as ``resolve`` does."""
    if (group := find_group(tables, caller.tenant.tenant_id, model)) is not None:
        require_callable(caller, model, group.name)
        return _group_entry(tables, caller, group)
    target = resolve(tables, caller.tenant.tenant_id, model, draw="")
    require_callable(caller, model, *target.names)
    if target.adapter is None:
        return _base_entry(caller, target.base)
    return _adapter_entry(tables, caller, model, target.adapter.route)


def _find(tables: Tables, tenant_id: str, model: str) -> tuple[AdapterRoute | None, str, dict[str, int]]:
    """The adapter that ``model`` names, the alias, and the weights of the revisions that may serve it; no weights if
    there is no such alias or revision.
    """
    adapters = tables.adapters.get(tenant_id, {})
    if (route := adapters.get(model)) is not None:
        if PROD in route.aliases:
            return route, PROD, _ready(route, route.aliases[PROD])
        return route, "", {route.newest: 1}
    name, colon, alias = model.partition(":")
    if colon:
        route = adapters.get(name)
        return route, alias, {} if route is None else _ready(route, route.aliases.get(alias, {}))
    name, at, revision_id = model.partition("@")
    route = adapters.get(name) if at else None
    return route, "", {} if route is None else _ready(route, {revision_id: 1})


def _ready(route: AdapterRoute, weights: dict[str, int]) -> dict[str, int]:
    return {revision: weight for revision, weight in weights.items() if revision in route.revisions}


def _group_entries(tables: Tables, caller: Caller) -> Iterator[dict[str, Any]]:
    """The tenant's groups and the platform's that can be called, by name."""
    tenant_id = caller.tenant.tenant_id
    for name in sorted({*tables.groups.get("", _NO_GROUPS), *tables.groups.get(tenant_id, _NO_GROUPS)}):
        if caller.may_call(name) and (group := find_group(tables, tenant_id, name)) is not None:
            with contextlib.suppress(NotFound):
                yield _group_entry(tables, caller, group)


def _group_entry(tables: Tables, caller: Caller, group: GroupRoute) -> dict[str, Any]:
    """A group allows what its largest member allows. Raises NotFound as ``members_of`` does."""
    bases = [target.base for _, target in members_of(tables, group, draw="")]
    created, owner = group.created_at_ms // 1000, group.tenant_id or "tenora"
    entry = {"id": group.name, "object": "model", "created": created, "owned_by": owner}
    members = [member.model for member in group.members]
    largest = max(bases, key=lambda base: base.context_tokens)
    return {**entry, "parent": None, "revisions": {}, "members": members, **_bounds(caller, largest)}


def _base_entry(caller: Caller, base: BaseModelRoute) -> dict[str, Any]:
    entry = {"id": base.id, "object": "model", "created": base.created_at_ms // 1000, "owned_by": "tenora"}
    return {**entry, "parent": None, "revisions": {}, "hub_name": base.hub_name, **_bounds(caller, base)}


def _adapter_entry(tables: Tables, caller: Caller, name: str, route: AdapterRoute) -> dict[str, Any]:
    """``revisions`` are those that serve the name now, with their weights."""
    tenant_id = caller.tenant.tenant_id
    entry = {"id": name, "object": "model", "created": route.created_at_ms // 1000, "owned_by": tenant_id}
    _, _, weights = _find(tables, tenant_id, name)
    bounds = _bounds(caller, tables.base_models.get(route.base_model))
    return {**entry, "parent": route.base_model, "revisions": weights, **bounds}


def _bounds(caller: Caller, base: BaseModelRoute | None) -> dict[str, object]:
    """The limits of a request to a model, and what it can do. ``max_model_len`` is in tokens, under vLLM's name."""
    limits = caller.limits
    context = limits.context_tokens if base is None else min(limits.context_tokens, base.context_tokens)
    shown = {name: getattr(limits, name) for name in _LIMITS_SHOWN}
    embeds = base is not None and base.task == "embed"
    capabilities = {"tools": base is not None and not embeds and renders_tools(base), "embeddings": embeds}
    return {"max_model_len": context, "limits": {"context_tokens": context, **shown}, "capabilities": capabilities}


def _unlisted(route: AdapterRoute) -> str:
    """What a caller can do about a ready revision that is too old to be published."""
    return (
        f" Revisions of `{route.name}` that can be called: {', '.join(list(route.revisions)[:_SHOWN_REVISIONS])}. To "
        f"call an older one, point an alias at it: PUT /api/v1/adapters/{route.name}/aliases/<alias>."
    )


def _not_found(model: str, fix: str = "") -> NotFound:
    shown = model if len(model) <= _SHOWN_CHARS else model[:_SHOWN_CHARS] + "…"
    return NotFound(
        f"The model `{shown}` does not exist or you do not have access to it." + fix,
        code="model_not_found",
        param="model",
    )
