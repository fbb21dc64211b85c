"""Registers base models and reads them. Their shapes never change, because adapters depend on them."""

import base64
import hashlib
import zlib
from collections.abc import Iterator
from typing import Final, cast

import msgspec
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from adapters.base_model_spec import BASE_MODEL_ID, HUB_NAME, BaseModelSpec, is_local_path
from control_plane.audit import service as audit
from control_plane.paging import Page, page_of
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_model_names
from control_plane.registry.models import Adapter, BaseModel, Provider, ProviderModel
from control_plane.registry.schemas import BaseModelView, NewBaseModel
from core import clock
from core.contracts.routes import BaseModelRoute, GpuTime, ProviderKind, ProviderRoute
from core.contracts.usage import TokenCosts
from core.errors import Conflict, InvalidRequest, NotFound
from core.struct_types import view_of

_SHOWN_MAX: Final = 20


def register(session: Session, new: NewBaseModel, *, actor: str) -> BaseModelView:
    """Add a base model, or change its chat template, context length and ranks. Registering the same spec again changes
    nothing; another model under the same id raises Conflict. After a change of rank classes the caller runs
    ``rank_classes.reclassify``; after a change of the template its replicas have to start again.
    """
    _require_valid(new)
    full = BaseModelSpec(**{name: getattr(new, name) for name in new.__struct_fields__})
    spec = msgspec.json.encode(full, order="sorted")
    spec_sha256 = hashlib.sha256(spec).hexdigest()
    known = session.get(BaseModel, new.id)
    if known is not None:
        if known.spec_sha256 == spec_sha256:
            return _view(session, known)
        served = {
            "context_tokens": full.context_tokens,
            "rank_max": full.rank_max,
            "rank_classes": full.rank_classes,
        }
        before = _spec(known)
        if msgspec.structs.replace(before, chat_template=full.chat_template, **served) == full:
            changed = served | {"chat_template_changed": before.chat_template != full.chat_template}
            known.context_tokens = full.context_tokens
            known.spec_zlib, known.spec_sha256 = zlib.compress(spec), spec_sha256
            publish_change(session, "base_models", known.id)
            audit.record(session, actor=actor, action="base_model.changed", target=known.id, details=changed)
            return _view(session, known)
        raise Conflict(
            f"id: {new.id!r} is registered with another spec, and adapters may depend on it. Choose a new id.",
            code="base_model_exists",
            param="id",
        )
    if session.exec(select(Adapter.id).where(Adapter.name == new.id, col(Adapter.deleted_at).is_(None))).first():
        raise Conflict(
            f"id: a tenant has an adapter with the name {new.id!r}. Choose another id.", code="name_taken", param="id"
        )
    row = BaseModel(
        id=new.id,
        hub_name=new.hub_name,
        context_tokens=new.context_tokens,
        vocab_size=new.vocab_size,
        tokenizer_sha256=hashlib.sha256(new.tokenizer_json.encode()).hexdigest(),
        spec_zlib=zlib.compress(spec),
        spec_sha256=spec_sha256,
    )
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"hub_name: {new.hub_name!r} is registered under another id.", code="base_model_exists", param="hub_name"
        ) from error
    publish_change(session, "base_models", row.id)
    audit.record(
        session, actor=actor, action="base_model.registered", target=row.id, details={"spec_sha256": spec_sha256}
    )
    return _view(session, row)


def list_base_models(session: Session, *, cursor: str | None, limit: int) -> Page[BaseModelView]:
    """All base models, by id in descending order."""
    return page_of(
        session, select(BaseModel), col(BaseModel.id), lambda row: _view(session, row), cursor=cursor, limit=limit
    )


def set_names(session: Session, base_model: str, names: list[str], *, actor: str) -> BaseModelView:
    """Replace the further names of a base model. Raises NotFound, InvalidRequest or Conflict."""
    row = session.get(BaseModel, base_model)
    if row is None:
        raise NotFound(f"There is no base model {base_model[:100]!r}.", code="base_model_not_found")
    base_model_names.replace(session, base_model, names)
    audit.record(session, actor=actor, action="base_model.named", target=base_model, details={"names": sorted(names)})
    return _view(session, row)


def ids(session: Session) -> list[str]:
    """The ids of all base models."""
    return list(session.exec(select(BaseModel.id)))


def rank_classes(session: Session) -> dict[str, tuple[int, ...]]:
    """The rank classes of each base model, by id."""
    return {row.id: _spec(row).classes for row in session.exec(select(BaseModel))}


def exists(session: Session, base_model: str) -> bool:
    """Whether a base model has this id."""
    return session.get(BaseModel, base_model) is not None


def is_outside(session: Session, base_model: str) -> bool:
    """Whether an outside provider serves this base model: it has no replicas, no pools and no adapters."""
    return session.get(ProviderModel, base_model) is not None


def resolve(session: Session, name: str) -> str:
    """The id of the base model with this id, Hub name or further name. A path, as trainers on a local copy write it,
    means the base model that its last part names, or the only one that there is; the shapes decide later. An outside
    provider's model has no adapters, so none is found. Raises InvalidRequest.
    """
    outside = set(session.exec(select(ProviderModel.base_model)))
    owners = {known: owner for known, owner in base_model_names.owners(session).items() if owner not in outside}
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].casefold()
    ids = sorted(set(owners.values()))
    is_path = is_local_path(name)
    by_last_part = {owner for known, owner in owners.items() if known.rpartition("/")[2] == last}
    if (owner := owners.get(name.casefold())) is not None:
        return owner
    if is_path and len(by_last_part) == 1:
        return by_last_part.pop()
    if is_path and len(ids) == 1:
        return ids[0]
    shown = ", ".join(ids[:_SHOWN_MAX]) or "none yet"
    raise InvalidRequest(
        f"base_model: {name[:200]!r} is no base model of this platform. Choose one of: {shown}.",
        code="base_model_not_found",
        param="base_model",
    )


def spec_of(session: Session, base_model: str) -> BaseModelSpec:
    """The spec of a registered model."""
    row = session.get(BaseModel, base_model)
    assert row is not None, "adapters refer to base models by foreign key, and base models are never deleted"
    return _spec(row)


def route(session: Session, base_model: str) -> tuple[BaseModelRoute, bytes] | None:
    """The published form of a model and its tokenizer's bytes. None for an unknown model."""
    row = session.get(BaseModel, base_model)
    return _route(session, row) if row else None


def all_routes(session: Session) -> Iterator[tuple[str, BaseModelRoute, bytes]]:
    """The published form and the tokenizer of every model, by id."""
    for base_model in session.exec(select(BaseModel.id)).all():
        row = session.get_one(BaseModel, base_model)
        yield (row.id, *_route(session, row))
        session.expunge(row)


def _spec(row: BaseModel) -> BaseModelSpec:
    return msgspec.json.decode(zlib.decompress(row.spec_zlib), type=BaseModelSpec)


def _route(session: Session, row: BaseModel) -> tuple[BaseModelRoute, bytes]:
    spec = _spec(row)
    published = BaseModelRoute(
        id=row.id,
        hub_name=row.hub_name,
        context_tokens=row.context_tokens,
        vocab_size=row.vocab_size,
        tokenizer_sha256=row.tokenizer_sha256,
        chat_template=spec.chat_template,
        bos_token=spec.bos_token,
        eos_token=spec.eos_token,
        created_at_ms=clock.to_ms(row.created_at),
        task=spec.task,
        gpu_time=GpuTime(input_token_us=row.input_token_us, output_token_us=row.output_token_us),
        provider=_provider(session, row.id),
    )
    return published, spec.tokenizer_json.encode()


def _provider(session: Session, base_model: str) -> ProviderRoute | None:
    found = session.exec(select(ProviderModel, Provider).join(Provider).where(ProviderModel.base_model == base_model))
    if (pair := found.first()) is None:
        return None
    model, provider = pair
    return ProviderRoute(
        provider_id=provider.id,
        kind=cast("ProviderKind", provider.kind),
        url=provider.url,
        model=model.model,
        sealed_key=base64.b64encode(provider.sealed_key).decode(),
        requests_max=provider.requests_max,
        margin_percent=model.margin_percent,
        costs=TokenCosts(
            input_nanos=model.input_nanos, cached_input_nanos=model.cached_input_nanos, output_nanos=model.output_nanos
        ),
        spend_nanos_per_month=provider.spend_nanos_per_month,
    )


def _require_valid(new: NewBaseModel) -> None:
    if not BASE_MODEL_ID.fullmatch(new.id):
        raise InvalidRequest("id: use lower-case letters, digits, '.', '_' and '-', at most 63 characters.", param="id")
    if not HUB_NAME.fullmatch(new.hub_name):
        raise InvalidRequest("hub_name: use the name on the Hub, such as 'org/model'.", param="hub_name")
    _require_valid_ranks(new)
    try:
        msgspec.json.decode(new.tokenizer_json, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"tokenizer_json: this is not a tokenizer.json: {error}.", param="tokenizer_json"
        ) from error


def _require_valid_ranks(new: NewBaseModel) -> None:
    classes = new.rank_classes
    if list(classes) != sorted(set(classes)):
        raise InvalidRequest(
            "rank_classes: list each pool's largest rank once, in ascending order.", param="rank_classes"
        )
    if classes and classes[-1] != new.rank_max:
        raise InvalidRequest(f"rank_max: must be {classes[-1]}, the largest of rank_classes.", param="rank_max")


def _view(session: Session, row: BaseModel) -> BaseModelView:
    return view_of(row, BaseModelView, names=base_model_names.names_of(session, [row.id])[row.id])
