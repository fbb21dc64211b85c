"""Outside providers and their models. Each model is a base model of its own, so that prices, quotas, usage and reports
count it as any other; ``registry/base_models.py`` publishes it with where it is served.

A provider and a model stay: usage refers to them. A provider that may have no requests at once serves none.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.registry.models import Provider, ProviderModel
from control_plane.registry.providers.schemas import (
    NewProvider,
    NewProviderModel,
    ProviderModelPatch,
    ProviderModelView,
    ProviderPatch,
    ProviderView,
)
from control_plane.registry.schemas import NewBaseModel
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import new_id
from core.sealed_secrets import Sealer
from core.struct_types import view_of

_PORTS: Final = {"https": 443, "http": 80}
_PROVIDERS_MAX: Final = 100
_MODELS_MAX: Final = 100


def create(session: Session, new: NewProvider, sealer: Sealer, *, principal: Principal) -> ProviderView:
    """Add a provider, which has no models yet. Raises Conflict."""
    if len(session.exec(select(Provider.id).limit(_PROVIDERS_MAX)).all()) == _PROVIDERS_MAX:
        raise Conflict(f"There are {_PROVIDERS_MAX} providers, which is the most.", code="too_many_providers")
    provider_id = new_id("prv")
    given = msgspec.structs.asdict(new) | {"url": new.url.rstrip("/")}
    row = Provider(id=provider_id, sealed_key=sealer.seal(given.pop("key"), provider_id), **given)
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"name: there is a provider {new.name!r}. Choose another name.", code="provider_exists", param="name"
        ) from error
    audited(session, principal, "provider.created", row.id, details=_without_key(new))
    return view_of(row, ProviderView)


def change(session: Session, name: str, patch: ProviderPatch, sealer: Sealer, *, principal: Principal) -> ProviderView:
    """Change where a provider is reached, its key and its limits. A stored key goes only to the server that it was
    given for. Raises NotFound and InvalidRequest.
    """
    row = _found(session, name, lock=True)
    changes = {field: value for field, value in msgspec.structs.asdict(patch).items() if value is not msgspec.UNSET}
    if (key := changes.pop("key", None)) is not None:
        row.sealed_key = sealer.seal(key, row.id)
    elif "url" in changes and _server(changes["url"]) != _server(row.url):
        raise InvalidRequest("key: the URL names another server. Give the API key for it too.", param="key")
    if "url" in changes:
        changes["url"] = changes["url"].rstrip("/")
    for field, value in changes.items():
        setattr(row, field, value)
    session.add(row)
    for base_model in session.exec(select(ProviderModel.base_model).where(ProviderModel.provider_id == row.id)):
        publish_change(session, "base_models", base_model)
    audited(session, principal, "provider.changed", row.id, details=_without_key(patch))
    return view_of(row, ProviderView)


def every(session: Session) -> list[ProviderView]:
    """All providers, by name."""
    return [view_of(row, ProviderView) for row in session.exec(select(Provider).order_by(col(Provider.name)))]


def add_model(session: Session, name: str, new: NewProviderModel, *, principal: Principal) -> ProviderModelView:
    """Add a model, and publish it as a base model. Raises NotFound, InvalidRequest and Conflict."""
    provider = _found(session, name, lock=True)
    mine = select(ProviderModel.base_model).where(ProviderModel.provider_id == provider.id)
    if len(session.exec(mine.limit(_MODELS_MAX)).all()) == _MODELS_MAX:
        raise Conflict(f"The provider has {_MODELS_MAX} models, which is the most.", code="too_many_provider_models")
    _require_countable(session, new.counts_like)
    if base_models.exists(session, new.id):
        raise Conflict(
            f"id: there is a base model {new.id!r}. Choose another id.", code="base_model_exists", param="id"
        )
    like = base_models.spec_of(session, new.counts_like)
    copied = {field: getattr(like, field) for field in NewBaseModel.__struct_fields__}
    own = {"id": new.id, "hub_name": f"{name}/{new.id}", "context_tokens": new.context_tokens}
    base_models.register(session, NewBaseModel(**copied | own), actor=principal.key_id)
    given = msgspec.structs.asdict(new)
    del given["id"], given["context_tokens"]  # the base model has them
    row = ProviderModel(base_model=new.id, provider_id=provider.id, **given)
    session.add(row)
    session.flush()
    audited(session, principal, "provider_model.created", new.id, details=new)
    return view_of(row, ProviderModelView)


def change_model(
    session: Session, name: str, base_model: str, patch: ProviderModelPatch, *, principal: Principal
) -> ProviderModelView:
    """Change a model's name at the provider, its costs and its margin. Raises NotFound."""
    provider = _found(session, name)
    row = session.get(ProviderModel, base_model, with_for_update=True)
    if row is None or row.provider_id != provider.id:
        raise NotFound("The provider has no such model.", code="provider_model_not_found")
    for field, value in msgspec.structs.asdict(patch).items():
        if value is not msgspec.UNSET:
            setattr(row, field, value)
    session.add(row)
    publish_change(session, "base_models", base_model)
    audited(session, principal, "provider_model.changed", base_model, details=patch)
    return view_of(row, ProviderModelView)


def models(session: Session, name: str) -> list[ProviderModelView]:
    """All models of a provider, by id. Raises NotFound."""
    provider = _found(session, name)
    wanted = select(ProviderModel).where(ProviderModel.provider_id == provider.id)
    return [view_of(row, ProviderModelView) for row in session.exec(wanted.order_by(col(ProviderModel.base_model)))]


def _require_countable(session: Session, counts_like: str) -> None:
    """Raise InvalidRequest unless prompts can be counted like those of this base model."""
    if not base_models.exists(session, counts_like) or base_models.is_outside(session, counts_like):
        raise InvalidRequest(
            f"counts_like: {counts_like!r} is no base model of this platform. GET /api/v1/admin/base-models lists "
            "them; choose one whose tokenizer is similar.",
            code="base_model_not_found",
            param="counts_like",
        )
    if base_models.spec_of(session, counts_like).task != "generate":
        raise InvalidRequest(
            f"counts_like: {counts_like!r} makes embeddings and has no chat template. Name a model that generates.",
            code="base_model_makes_embeddings_only",
            param="counts_like",
        )


def _found(session: Session, name: str, *, lock: bool = False) -> Provider:
    wanted = select(Provider).where(Provider.name == name)
    row = session.exec(wanted.with_for_update() if lock else wanted).first()
    if row is None:
        raise NotFound("Provider not found.", code="provider_not_found")
    return row


def _server(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def _without_key(change: NewProvider | ProviderPatch) -> dict[str, object]:
    """What the audit trail has of a change: everything but the key."""
    shown: dict[str, object] = msgspec.to_builtins(change)
    if "key" in shown:
        shown["key"] = "(set)"
    return shown
