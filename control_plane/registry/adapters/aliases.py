"""Aliases of an adapter: movable names for one of its ready revisions, or for several by weight.

The first ready revision sets ``prod``, the alias that the bare name means; later ones wait until it is moved. Rollout,
canary and rollback are the same call. ``data_plane.gateway`` chooses between revisions by weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func
from sqlmodel import Session, col, select

from control_plane.audit import service as audit
from control_plane.publishing import prefetch_hints
from control_plane.publishing.outbox import publish_change
from control_plane.registry.adapters import pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.models import Adapter, Alias, Revision
from control_plane.registry.schemas import NAME, AliasTarget, AliasView
from control_plane.settings import WebSettings
from core import clock
from core.contracts.routes import PROD, PrefetchHint
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.struct_types import view_of


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """An alias after its change (None after its removal) and its previous target. ``change_id`` is the row of the
    outbox that gateways must acknowledge; ``hints`` let replicas load the revisions early.
    """

    alias: AliasView | None
    previous: AliasTarget | None
    change_id: int
    hints: tuple[PrefetchHint, ...] = ()


def set_target(
    session: Session, target: AliasTarget, *, tenant_id: str, name: str, alias: str, actor: str, settings: WebSettings
) -> AliasChange:
    """Set the target of an adapter's alias to ready revisions of the adapter. Raises NotFound for the adapter, Conflict
    for a revision that is not ready, Forbidden above the limit of aliases, and InvalidRequest naming an invalid field.
    """
    if not NAME.fullmatch(alias):
        raise InvalidRequest(
            "alias: use lower-case letters, digits and '-', at most 63 characters, and do not start with '-'.",
            code="invalid_name",
            param="alias",
        )
    adapter = adapters.find(session, tenant_id=tenant_id, name=name, lock=True)
    weights = _weights(target, settings)
    _require_ready(session, adapter, weights, single=target.revision is not None)
    row = session.get(Alias, (adapter.id, alias))
    previous = None if row is None else _target(row.weights)
    if row is None:
        _require_below_limits(session, adapter, settings.aliases_max)
        row = Alias(adapter_id=adapter.id, name=alias, tenant_id=tenant_id, weights=weights)
    row.weights, row.updated_at = weights, clock.now()
    session.add(row)
    change_id = _publish(session, adapter)
    audit.record(
        session,
        actor=actor,
        action="alias.moved",
        target=adapter.id,
        tenant_id=tenant_id,
        details={
            "alias": alias,
            "weights": weights,
            "previous": None if previous is None else _target_details(previous),
        },
    )
    route = adapters.route(session, adapters.field_of(adapter), revisions_max=1)  # and those that the alias names
    hints = () if route is None else prefetch_hints.hints_for_move(route, weights)
    return AliasChange(alias=_view(row, name), previous=previous, change_id=change_id, hints=hints)


def set_first(session: Session, adapter: Adapter, revision_id: str, *, actor: str) -> None:
    """Let the name of an adapter serve its first ready revision. The caller has locked the adapter and publishes its
    route.
    """
    weights = {revision_id: 1}
    session.add(Alias(adapter_id=adapter.id, name=PROD, tenant_id=adapter.tenant_id, weights=weights))
    session.flush()
    details = {"alias": PROD, "weights": weights, "previous": None}
    tenant_id = adapter.tenant_id
    audit.record(session, actor=actor, action="alias.moved", target=adapter.id, tenant_id=tenant_id, details=details)


def remove(session: Session, *, tenant_id: str, name: str, alias: str, actor: str) -> AliasChange:
    """Remove an alias. Without ``prod`` the adapter's name follows its newest ready revision. Raises NotFound."""
    adapter = adapters.find(session, tenant_id=tenant_id, name=name, lock=True)
    row = _find(session, adapter, alias)
    previous = _target(row.weights)
    session.delete(row)
    change_id = _publish(session, adapter)
    audit.record(
        session,
        actor=actor,
        action="alias.removed",
        target=adapter.id,
        tenant_id=tenant_id,
        details={"alias": alias, "previous": _target_details(previous)},
    )
    return AliasChange(alias=None, previous=previous, change_id=change_id)


def get(session: Session, *, tenant_id: str, name: str, alias: str) -> AliasView:
    """One alias of one of the tenant's adapters. Raises NotFound."""
    return _view(_find(session, adapters.find(session, tenant_id=tenant_id, name=name), alias), name)


def list_aliases(session: Session, *, tenant_id: str, name: str) -> list[AliasView]:
    """An adapter's aliases by name, at most ``aliases_max``. Raises NotFound for the adapter."""
    adapter = adapters.find(session, tenant_id=tenant_id, name=name)
    mine = select(Alias).where(Alias.adapter_id == adapter.id).order_by(col(Alias.name))
    return [_view(row, name) for row in session.exec(mine)]


def _weights(target: AliasTarget, settings: WebSettings) -> dict[str, int]:
    """The target as weights. Raises InvalidRequest naming the field."""
    if (target.revision is None) == (target.weights is None):
        raise InvalidRequest(
            'revision: send either {"revision": "rev_…"} or {"weights": {"rev_…": 90, "rev_…": 10}}.', param="revision"
        )
    if target.revision is not None:
        return {target.revision: 1}
    weights = dict(target.weights or {})
    if not 1 <= len(weights) <= settings.alias_revisions_max:
        raise InvalidRequest(
            f"weights: list 1 to {settings.alias_revisions_max} revisions; this request has {len(weights)}.",
            param="weights",
        )
    for revision_id, weight in weights.items():
        if weight < 1:
            raise InvalidRequest(
                f"weights.{revision_id}: is {weight}. Use 1 or more, or omit a revision that gets no traffic.",
                param=f"weights.{revision_id}",
            )
    if (total := sum(weights.values())) > settings.alias_weights_max:
        raise InvalidRequest(
            f"weights: their sum is {total}, the limit is {settings.alias_weights_max}. Only proportions matter; scale "
            "them down.",
            param="weights",
        )
    return weights


def _require_ready(session: Session, adapter: Adapter, weights: Mapping[str, int], *, single: bool) -> None:
    """Raise unless every revision belongs to this adapter and is ready."""
    theirs = select(Revision.id, Revision.status).where(
        Revision.tenant_id == adapter.tenant_id,
        Revision.adapter_id == adapter.id,
        col(Revision.id).in_(weights),
    )
    statuses = {revision_id: status for revision_id, status in session.exec(theirs)}  # noqa: C416 - mypy does not see rows as pairs
    for revision_id in weights:
        param = "revision" if single else f"weights.{revision_id}"
        status = statuses.get(revision_id)
        if status is None:
            raise InvalidRequest(
                f"{param}: {adapter.name!r} has no revision {revision_id!r}. List its revisions with "
                f"GET /api/v1/adapters/{adapter.name}/revisions.",
                code="revision_not_found",
                param=param,
            )
        if status != "ready":
            raise Conflict(
                f"{param}: {revision_id!r} is {status}, not ready. Use a ready revision, or wait for the verdict.",
                code="revision_not_ready",
                param=param,
            )


def _require_below_limits(session: Session, adapter: Adapter, aliases_max: int) -> None:
    counted = select(func.count()).select_from(Alias).where(col(Alias.adapter_id) == adapter.id)
    if session.exec(counted).one() >= aliases_max:
        raise Forbidden(
            f"alias: an adapter may have at most {aliases_max} aliases. Remove an unused one.",
            code="alias_quota_exceeded",
        )


def _publish(session: Session, adapter: Adapter) -> int:
    session.flush()
    pins.refresh(session, adapter)
    change = publish_change(session, "adapters", adapters.field_of(adapter))
    session.flush()
    assert change.id is not None, "a flushed row has an id"
    return change.id


def _find(session: Session, adapter: Adapter, alias: str) -> Alias:
    row = session.get(Alias, (adapter.id, alias))
    if row is None:
        raise NotFound("Alias not found.", code="alias_not_found")
    return row


def _target(weights: Mapping[str, int]) -> AliasTarget:
    """The request body that sets these weights: the inverse of ``_weights``."""
    only = _only(weights)
    return AliasTarget(weights=dict(weights)) if only is None else AliasTarget(revision=only)


def _target_details(target: AliasTarget) -> dict[str, object]:
    return {"revision": target.revision} if target.weights is None else {"weights": target.weights}


def _only(weights: Mapping[str, int]) -> str | None:
    return next(iter(weights)) if len(weights) == 1 else None


def _view(row: Alias, name: str) -> AliasView:
    return view_of(row, AliasView, adapter=name, model=f"{name}:{row.name}", revision=_only(row.weights))
