"""Tenants' adapters: names for fine-tunes, within the plan's limit, and the route of each that gateways follow."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any, cast

from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import QueryableAttribute, defer
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from control_plane.audit import service as audit
from control_plane.paging import Page, page_from
from control_plane.registry import base_models
from control_plane.registry.adapters import pins
from control_plane.registry.models import Adapter, Alias, Revision
from control_plane.registry.schemas import NAME, AdapterView, NewAdapter
from control_plane.tenants import service as tenants
from core import clock
from core.contracts.routes import PROD, AdapterRoute, RevisionRoute
from core.db import among, database_now, newest_first
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.struct_types import view_of

_Aliases = dict[str, dict[str, int]] | None


def create(session: Session, new: NewAdapter, *, tenant_id: str, actor: str, unready_max: int) -> AdapterView:
    """Create an adapter without revisions. Raises Forbidden when the plan's limit is reached or ``unready_max``
    adapters have no ready revision, Conflict for a taken name, and InvalidRequest for an invalid name or an unknown
    base model.
    """
    if not NAME.fullmatch(new.name):
        raise InvalidRequest(
            "name: use lower-case letters, digits and '-', at most 63 characters, and do not start with '-'.",
            code="invalid_name",
            param="name",
        )
    if base_models.exists(session, new.name):
        raise InvalidRequest(
            f"name: {new.name!r} is the id of a base model. Choose another name.", code="invalid_name", param="name"
        )
    base_model = base_models.resolve(session, new.base_model)
    if base_models.spec_of(session, base_model).task == "embed":
        raise InvalidRequest(
            f"base_model: {base_model!r} makes embeddings, and takes no adapters. Choose one that generates text.",
            code="base_model_takes_no_adapters",
            param="base_model",
        )
    tenants.lock(session, tenant_id)
    if (full := full_plan(session, tenant_id)) is not None:
        raise Forbidden(f"adapters: {full}", code="adapter_quota_exceeded")
    unready = count_names(session, tenant_id) - count(session, tenant_id)
    if unready >= unready_max:
        raise Forbidden(
            f"adapters: {unready} have no ready revision; at most {unready_max} may have none. Delete some.",
            code="adapter_quota_exceeded",
        )
    _free_rejected_name(session, tenant_id, new.name, actor)
    row = Adapter(tenant_id=tenant_id, base_model=base_model, name=new.name)
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"name: you already have an adapter {new.name!r}. Add a revision to it.",
            code="adapter_exists",
            param="name",
        ) from error
    audit.record(
        session,
        actor=actor,
        action="adapter.created",
        target=row.id,
        tenant_id=tenant_id,
        details={"name": row.name, "base_model": base_model},
    )
    return _view(session, row)


def get(session: Session, *, tenant_id: str, name: str) -> AdapterView:
    """One of the tenant's adapters, also one whose revisions were all rejected. Raises NotFound."""
    return _view(session, find(session, tenant_id=tenant_id, name=name))


def list_adapters(session: Session, *, tenant_id: str, cursor: str | None, limit: int) -> Page[AdapterView]:
    """The tenant's adapters, newest first, without those whose revisions were all rejected."""
    mine = select(Adapter).where(Adapter.tenant_id == tenant_id, col(Adapter.deleted_at).is_(None), ~_all_rejected())

    def read(*, after: str | None, limit: int) -> Sequence[AdapterView]:
        return _views(session, session.exec(newest_first(mine, col(Adapter.id), after=after, limit=limit)).all())

    return page_from(read, cursor=cursor, limit=limit)


def count(session: Session, tenant_id: str) -> int:
    """The number of the tenant's adapters that count against its plan: those with a ready revision."""
    ready = select(Revision.id).where(
        Revision.tenant_id == tenant_id, Revision.adapter_id == Adapter.id, Revision.status == "ready"
    )
    mine = select(func.count()).select_from(Adapter).where(ready.exists())
    return session.exec(mine.where(col(Adapter.tenant_id) == tenant_id, col(Adapter.deleted_at).is_(None))).one()


def count_names(session: Session, tenant_id: str) -> int:
    """The number of the tenant's adapters that are listed, with and without a ready revision."""
    mine = select(func.count()).select_from(Adapter).where(~_all_rejected())
    return session.exec(mine.where(col(Adapter.tenant_id) == tenant_id, col(Adapter.deleted_at).is_(None))).one()


def full_plan(session: Session, tenant_id: str) -> str | None:
    """Why the tenant cannot have another adapter with a ready revision, with the fix; None where it can."""
    tenant = tenants.get(session, tenant_id)
    if count(session, tenant_id) < tenant.limits.adapters:
        return None
    return f'plan "{tenant.plan}" allows {tenant.limits.adapters}. Delete one or change the plan.'


def has_ready_revision(session: Session, adapter: Adapter) -> bool:
    """Whether the adapter counts against the plan already."""
    return _newest_ready(session, adapter) is not None


def _all_rejected() -> ColumnElement[bool]:
    """Whether an adapter has revisions and all were rejected. Its reports can be read; it is not listed, and creating
    its name again replaces it.
    """
    mine = select(Revision.id).where(Revision.tenant_id == Adapter.tenant_id, Revision.adapter_id == Adapter.id)
    return mine.exists() & ~mine.where(Revision.status != "rejected").exists()


def _free_rejected_name(session: Session, tenant_id: str, name: str, actor: str) -> None:
    """Delete the adapter of this name if its revisions were all rejected. The caller has locked the tenant, so none is
    announced meanwhile.
    """
    mine = select(Adapter).where(
        Adapter.tenant_id == tenant_id, Adapter.name == name, col(Adapter.deleted_at).is_(None)
    )
    row = session.exec(mine.where(_all_rejected()).with_for_update()).first()
    if row is None:
        return
    row.deleted_at = database_now(session)
    session.add(row)
    session.flush()
    if row.pinned:
        pins.refresh_tenants(session, [tenant_id])  # another pinned adapter may now be within the limit
    details = {"name": name, "reason": "every revision was rejected, and the name was created again"}
    audit.record(session, actor=actor, action="adapter.deleted", target=row.id, tenant_id=tenant_id, details=details)


def names_of(session: Session, *, tenant_id: str, adapter_ids: AbstractSet[str]) -> dict[str, str]:
    """The names of these adapters of the tenant, including deleted ones, by id."""
    mine = select(Adapter.id, Adapter.name).where(Adapter.tenant_id == tenant_id, col(Adapter.id).in_(adapter_ids))
    return {adapter_id: name for adapter_id, name in session.exec(mine)}  # noqa: C416 - dict() does not know row types


def owned_names(session: Session, adapter_ids: AbstractSet[str]) -> dict[str, tuple[str, str]]:
    """The tenant and the name of each of these adapters, including deleted ones, by id."""
    wanted = select(Adapter.id, Adapter.tenant_id, Adapter.name).where(col(Adapter.id).in_(adapter_ids))
    return {adapter_id: (tenant_id, name) for adapter_id, tenant_id, name in session.exec(wanted)}


def find(session: Session, *, tenant_id: str, name: str, lock: bool = False) -> Adapter:
    """The row of one of the tenant's adapters. Raises NotFound, also for another tenant's adapter."""
    mine = select(Adapter).where(
        Adapter.tenant_id == tenant_id, Adapter.name == name, col(Adapter.deleted_at).is_(None)
    )
    row = session.exec(mine.with_for_update() if lock else mine).first()
    if row is None:
        raise NotFound("Adapter not found.", code="adapter_not_found")
    return row


def field_of(adapter: Adapter) -> str:
    """The field under which the adapter's route is published. It has the name, so a successor of a deleted adapter uses
    the same field.
    """
    return f"{adapter.tenant_id}/{adapter.name}"


def route(session: Session, field: str, *, revisions_max: int) -> AdapterRoute | None:
    """The published route of ``<tenant_id>/<name>``. None for a revoked adapter, and without a live adapter that has a
    ready revision. The route contains the newest ``revisions_max`` revisions and all that an alias names.
    """
    tenant_id, _, name = field.partition("/")
    rows = session.exec(_routable().where(Adapter.tenant_id == tenant_id, Adapter.name == name)).all()
    return _route(session, rows[0][0], rows, revisions_max) if rows else None


def all_routes(session: Session, *, revisions_max: int) -> Iterator[tuple[str, AdapterRoute]]:
    """The published route of every adapter that has one."""
    rows = session.exec(_routable().execution_options(yield_per=1000))
    for adapter, of_adapter in groupby(rows, key=lambda row: row[0]):
        yield field_of(adapter), _route(session, adapter, list(of_adapter), revisions_max)


def _routable() -> Select[Adapter, Revision, _Aliases]:
    """Every live adapter that is not revoked, with each ready revision, newest first, and its aliases."""
    aliases = select(func.jsonb_object_agg(Alias.name, Alias.weights)).where(Alias.adapter_id == Adapter.id)
    return (
        select(Adapter, Revision, aliases.scalar_subquery())
        .join(Revision, (col(Revision.tenant_id) == Adapter.tenant_id) & (col(Revision.adapter_id) == Adapter.id))
        .where(col(Adapter.deleted_at).is_(None), Revision.status == "ready", ~pins.unlifted(col(Adapter.id)).exists())
        .options(*(defer(cast("QueryableAttribute[Any]", column)) for column in (Revision.report, Revision.canary)))
        .order_by(col(Adapter.id), col(Revision.id).desc())
    )


def _newest_ready(session: Session, adapter: Adapter) -> Revision | None:
    ready = select(Revision).where(
        Revision.tenant_id == adapter.tenant_id, Revision.adapter_id == adapter.id, Revision.status == "ready"
    )
    return session.exec(ready.order_by(col(Revision.id).desc()).limit(1)).first()


def _route(
    session: Session, adapter: Adapter, rows: Sequence[tuple[Adapter, Revision, _Aliases]], revisions_max: int
) -> AdapterRoute:
    """Every change of an alias sends the whole route to every gateway, so it omits old revisions without an alias."""
    aliases = rows[0][2] or {}
    named = {revision_id for weights in aliases.values() for revision_id in weights}
    kept = [revision for place, (_, revision, _) in enumerate(rows) if place < revisions_max or revision.id in named]
    revisions = [_revision_route(session, adapter, revision) for revision in kept]
    return AdapterRoute(
        adapter_id=adapter.id,
        tenant_id=adapter.tenant_id,
        name=adapter.name,
        base_model=adapter.base_model,
        created_at_ms=clock.to_ms(adapter.created_at),
        newest=revisions[0].id,
        revisions={revision.id: revision for revision in revisions},
        aliases=aliases,
    )


def _revision_route(session: Session, adapter: Adapter, revision: Revision) -> RevisionRoute:
    """A revision without a recorded rank counts as the largest rank that the replicas of its base model serve."""
    assert revision.digest is not None, "a ready revision has a digest; a constraint ensures it too"
    rank, rank_class = revision.rank, revision.rank_class
    if rank is None or rank_class is None:
        largest = base_models.spec_of(session, adapter.base_model).rank_max
        rank, rank_class = rank or largest, rank_class or largest
    return RevisionRoute(id=revision.id, digest=revision.digest, rank=rank, rank_class=rank_class)


def _view(session: Session, row: Adapter) -> AdapterView:
    return _views(session, [row])[0]


def _views(session: Session, rows: Sequence[Adapter]) -> list[AdapterView]:
    """The views of one tenant's adapters, with two queries for all of them."""
    ids = [row.id for row in rows]
    last = (
        select(func.max(Revision.id))
        .where(col(Revision.tenant_id).in_({row.tenant_id for row in rows}), among(col(Revision.adapter_id), ids))
        .where(Revision.status == "ready")
        .group_by(Revision.adapter_id)
    )
    ready = select(Revision.adapter_id, Revision.id, Revision.rank, Revision.rank_class)
    newest = {found[0]: found for found in session.exec(ready.where(col(Revision.id).in_(last)))}
    prods = select(Alias.adapter_id, Alias.weights).where(among(col(Alias.adapter_id), ids), Alias.name == PROD)
    served = {adapter_id: _only(weights) for adapter_id, weights in session.exec(prods)}

    def view(row: Adapter) -> AdapterView:
        _, revision, rank, rank_class = newest.get(row.id, (row.id, None, None, None))
        return view_of(
            row,
            AdapterView,
            revision=revision,
            newest_ready=revision,
            serves=served.get(row.id, revision),
            rank=rank,
            rank_class=rank_class,
        )

    return [view(row) for row in rows]


def _only(weights: Mapping[str, int]) -> str | None:
    return next(iter(weights)) if len(weights) == 1 else None
