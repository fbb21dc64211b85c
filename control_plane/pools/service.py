"""Pools and their revisions. A revision is complete when it is stored: a later default changes none.

Nothing here starts a replica. A replica itself compares its digest with the revision's
(``core.contracts.pool_revisions``).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from pydantic import ValidationError
from redis import Redis
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.fleet import service as fleet
from control_plane.pools.models import PoolRevisionRow, PoolRow
from control_plane.pools.schemas import (
    NewPool,
    NewPoolRevision,
    PoolPatch,
    PoolReplicas,
    PoolRevisionView,
    PoolView,
)
from control_plane.publishing.outbox import publish_change
from control_plane.registry import base_models
from control_plane.tenants.models import Tenant
from core import redis_keys
from core.contracts.fleet import read_wanted
from core.contracts.pool_revisions import PoolRevision, settings_of
from core.contracts.replicas import ReplicaStatus
from core.engine_settings import EngineSettings
from core.errors import Conflict, InvalidRequest, NotFound
from core.rank_classes import VLLM_RANKS
from core.struct_types import view_of

_POOLS_MAX: Final = 1_000
_REVISIONS_MAX: Final = 10_000


def create(session: Session, new: NewPool, *, principal: Principal) -> PoolView:
    """Add a pool without a revision. Raises InvalidRequest and Conflict."""
    if not base_models.exists(session, new.base_model):
        raise InvalidRequest(
            f"base_model: there is no base model {new.base_model[:100]!r}. GET /api/v1/admin/base-models lists them.",
            code="base_model_not_found",
            param="base_model",
        )
    if base_models.is_outside(session, new.base_model):
        raise InvalidRequest(
            f"base_model: an outside provider serves {new.base_model!r}, so it has no replicas. Name a model of yours.",
            code="base_model_is_outside",
            param="base_model",
        )
    if new.rank_max not in VLLM_RANKS:
        raise InvalidRequest(f"rank_max: use one of {', '.join(map(str, VLLM_RANKS))}.", param="rank_max")
    _require_ordered(new.replicas_min, new.replicas_max)
    _require_known_audience(session, new.tenants, new.tokens_min, new.tokens_max)
    if len(session.exec(select(PoolRow.name).limit(_POOLS_MAX)).all()) == _POOLS_MAX:
        raise Conflict(f"There are {_POOLS_MAX} pools, which is the most.", code="too_many_pools")
    pool = PoolRow(**msgspec.structs.asdict(new))
    session.add(pool)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            f"name: there is a pool {new.name!r}. Choose another name.", code="pool_exists", param="name"
        ) from error
    publish_change(session, "pools", pool.name)
    audited(session, principal, "pool.created", pool.name, details=new)
    return _view(session, pool, (), 0)


def change(session: Session, redis: Redis, name: str, patch: PoolPatch, *, principal: Principal) -> PoolView:
    """Change a pool's hardware label, its bounds, and whom it serves. Raises NotFound and InvalidRequest."""
    pool = _locked(session, name)
    for field, value in msgspec.structs.asdict(patch).items():
        if value is not msgspec.UNSET:
            setattr(pool, field, value)
    _require_ordered(pool.replicas_min, pool.replicas_max)
    _require_known_audience(session, pool.tenants, pool.tokens_min, pool.tokens_max)
    session.add(pool)
    publish_change(session, "pools", name)
    audited(session, principal, "pool.changed", name, details=patch)
    return _live_view(session, redis, pool)


def every(session: Session, redis: Redis) -> list[PoolView]:
    """All pools, by name."""
    replicas = fleet.published_statuses(redis)
    pools = session.exec(select(PoolRow).order_by(PoolRow.name)).all()
    wanted = _wanted(redis, [pool.name for pool in pools])
    return [_view(session, pool, replicas, count) for pool, count in zip(pools, wanted, strict=True)]


def read(session: Session, redis: Redis, name: str) -> PoolView:
    """One pool. Raises NotFound."""
    return _live_view(session, redis, _found(session.get(PoolRow, name), name))


def require(session: Session, name: str, *, base_model: str, rank_max: int) -> None:
    """Raise InvalidRequest unless there is such a pool, of this base model and rank class."""
    pool = session.get(PoolRow, name)
    if pool is None:
        raise InvalidRequest(
            f"pool: there is no pool {name[:100]!r}. GET /api/v1/admin/pools lists them.",
            code="pool_not_found",
            param="pool",
        )
    if (pool.base_model, pool.rank_max) != (base_model, rank_max):
        raise InvalidRequest(
            f"pool: {name} is a pool of {pool.base_model} and rank class {pool.rank_max}. Use these as base_model and "
            "rank_max, or name another pool.",
            code="pool_mismatch",
            param="pool",
        )


def add_revision(session: Session, name: str, new: NewPoolRevision, *, principal: Principal) -> PoolRevisionView:
    """Add a revision, which is the newest one with changes. It is not in force. Raises NotFound, InvalidRequest and
    Conflict.
    """
    pool = _locked(session, name)
    newest = _newest(session, name)
    weights = new.weights or (newest.weights if newest else "")
    engine = new.engine or (newest.engine if newest else "")
    for field, value in (("weights", weights), ("engine", engine)):
        if not value:
            raise InvalidRequest(f"{field}: the first revision of a pool needs it.", code="missing_field", param=field)
    task = base_models.spec_of(session, pool.base_model).task
    first: dict[str, int | str] = {"engine_rank_max": pool.rank_max, "engine_dtype": "bfloat16", "engine_task": task}
    known = newest.settings if newest else first
    kept = {field: value for field, value in known.items() if field in EngineSettings.model_fields}
    settings = _settings(kept | new.settings)
    if settings["engine_dtype"] == "auto":
        raise InvalidRequest(
            "settings.engine_dtype: auto differs by machine. Use bfloat16, float16 or float32.",
            param="settings.engine_dtype",
        )
    if settings["engine_rank_max"] != pool.rank_max:
        raise InvalidRequest(
            f"settings.engine_rank_max: the pool's rank class is {pool.rank_max}. Make another pool for another class.",
            param="settings.engine_rank_max",
        )
    if settings["engine_task"] != task:
        raise InvalidRequest(
            f"settings.engine_task: the base model's task is {task}. Leave the setting out.",
            param="settings.engine_task",
        )
    revision = PoolRevision(base_model=pool.base_model, weights=weights, engine=engine, settings=settings)
    same = session.exec(
        select(PoolRevisionRow).where(PoolRevisionRow.pool == name, PoolRevisionRow.digest == revision.digest)
    ).first()
    if same is not None:
        raise Conflict(f"This is revision {same.number} of the pool already.", code="pool_revision_exists")
    number = newest.number + 1 if newest else 1
    if number > _REVISIONS_MAX:
        raise Conflict(f"The pool has {_REVISIONS_MAX} revisions. Make another pool.", code="too_many_pool_revisions")
    row = PoolRevisionRow(
        pool=name,
        number=number,
        digest=revision.digest,
        weights=weights,
        engine=engine,
        settings=settings,
        created_by=principal.key_id,
    )
    session.add(row)
    session.flush()
    audited(session, principal, "pool.revision_added", name, details={"revision": number, "digest": row.digest})
    return _revision_view(pool, row)


def revisions(session: Session, name: str, *, after: str | None, limit: int) -> Sequence[PoolRevisionView]:
    """Revisions of a pool, the newest first. Raises NotFound."""
    pool = _found(session.get(PoolRow, name), name)
    wanted = select(PoolRevisionRow).where(PoolRevisionRow.pool == name)
    if after is not None:
        if not (after.isdecimal() and len(after) < len(str(_REVISIONS_MAX)) + 1):
            raise InvalidRequest("cursor: this is not the cursor of a pool's revisions.", code="invalid_cursor")
        wanted = wanted.where(PoolRevisionRow.number < int(after))
    rows = session.exec(wanted.order_by(col(PoolRevisionRow.number).desc()).limit(limit)).all()
    return [_revision_view(pool, row) for row in rows]


def use(session: Session, redis: Redis, name: str, number: int, *, principal: Principal) -> PoolView:
    """Put a revision in force, an older one too. Raises NotFound."""
    pool = _locked(session, name)
    if session.get(PoolRevisionRow, (name, number)) is None:
        raise NotFound(
            f"revision: the pool {name} has no revision {number}. GET /api/v1/admin/pools/{name}/revisions lists them.",
            code="pool_revision_not_found",
            param="revision",
        )
    audited(session, principal, "pool.revision_used", name, details={"revision": number, "before": pool.revision})
    pool.revision = number
    session.add(pool)
    session.flush()
    return _live_view(session, redis, pool)


def environment_of(pool: PoolRow, revision: PoolRevisionRow) -> dict[str, str]:
    """The variables of a replica that runs this revision. Secrets and addresses are its machine's."""
    return {
        "TENORA_POOL": pool.name,
        "TENORA_POOL_REVISION": revision.digest,
        "TENORA_BASE_MODEL": pool.base_model,
        "TENORA_MODEL_DIGEST": revision.weights,
    } | {f"TENORA_{name.upper()}": str(value) for name, value in sorted(revision.settings.items())}


def _settings(given: dict[str, Any]) -> dict[str, int | str]:
    """All settings of an engine. Raises InvalidRequest for the first unknown or wrong one."""
    try:
        return settings_of(EngineSettings.model_validate(given, strict=True, extra="forbid"))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])[:100] if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            known = ", ".join(EngineSettings.model_fields)
            text = f"settings.{name}: there is no such setting of an engine. Known are {known}."
        else:
            text = f"settings.{name}: {first['msg'].removeprefix('Value error, ')}."
        raise InvalidRequest(text, param=f"settings.{name}") from error


def _require_ordered(least: int, most: int) -> None:
    if least > most:
        raise InvalidRequest(
            f"replicas_min: {least} is more than replicas_max, {most}. Lower one or raise the other.",
            param="replicas_min",
        )


def _require_known_audience(
    session: Session, tenants: Sequence[str] | None, tokens_min: int | None, tokens_max: int | None
) -> None:
    if tokens_min is not None and tokens_max is not None and tokens_min > tokens_max:
        raise InvalidRequest(
            f"tokens_min: {tokens_min} is more than tokens_max, {tokens_max}. Lower one or raise the other.",
            param="tokens_min",
        )
    known = session.exec(select(Tenant.id).where(col(Tenant.id).in_(tenants or ()))).all()
    if unknown := sorted({*(tenants or ())} - {*known}):
        raise InvalidRequest(
            f"tenants: there is no tenant {unknown[0][:100]!r}. GET /api/v1/admin/tenants lists them.",
            code="tenant_not_found",
            param="tenants",
        )


def _locked(session: Session, name: str) -> PoolRow:
    return _found(session.exec(select(PoolRow).where(PoolRow.name == name).with_for_update()).first(), name)


def _found(pool: PoolRow | None, name: str) -> PoolRow:
    if pool is None:
        raise NotFound(f"There is no pool {name[:100]!r}. GET /api/v1/admin/pools lists them.", code="pool_not_found")
    return pool


def _newest(session: Session, pool: str) -> PoolRevisionRow | None:
    newest = select(PoolRevisionRow).where(PoolRevisionRow.pool == pool).order_by(col(PoolRevisionRow.number).desc())
    return session.exec(newest.limit(1)).first()


def _wanted(redis: Redis, pools: Sequence[str]) -> list[int]:
    """The replicas of each pool that placers should keep running."""
    entries = cast("list[bytes | None]", redis.hmget(redis_keys.FLEET_WANTED, pools)) if pools else []
    wanted = [None if entry is None else read_wanted(entry) for entry in entries]
    return [0 if each is None else sum(revision.replicas for revision in each.revisions) for each in wanted]


def _live_view(session: Session, redis: Redis, pool: PoolRow) -> PoolView:
    (wanted,) = _wanted(redis, [pool.name])
    return _view(session, pool, fleet.published_statuses(redis), wanted)


def _view(session: Session, pool: PoolRow, replicas: Sequence[ReplicaStatus], wanted: int) -> PoolView:
    in_time = sorted(replicas, key=lambda each: each.heartbeat_ms)
    # A copy that fails and starts again has a new id each time, and its old reports stay for a minute.
    mine = {each.copy or each.id: each for each in in_time if each.pool == pool.name}.values()
    digests = {each.revision for each in mine}
    found = select(PoolRevisionRow.digest, PoolRevisionRow.number).where(
        PoolRevisionRow.pool == pool.name, col(PoolRevisionRow.digest).in_(digests)
    )
    numbers = dict(session.exec(found).all()) if digests else {}
    counted = Counter((numbers.get(each.revision), each.state) for each in mine)
    shown = sorted(counted.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
    return view_of(
        pool,
        PoolView,
        replicas_wanted=wanted,
        replicas=tuple(PoolReplicas(revision=number, state=state, count=count) for (number, state), count in shown),
    )


def _revision_view(pool: PoolRow, row: PoolRevisionRow) -> PoolRevisionView:
    return view_of(row, PoolRevisionView, environment=environment_of(pool, row))
