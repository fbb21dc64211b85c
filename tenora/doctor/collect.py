"""Reads what `tenora doctor` compares: Redis, Postgres and every engine. The comparison itself is not done here."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx
import msgspec
import sqlalchemy as sa
from redis import Redis
from sqlmodel import Session, col, select

from control_plane.fleet import service as fleet
from control_plane.projections import projections
from control_plane.registry.models import Adapter, Alias, Revision
from core import db, redis_keys
from core.contracts.replicas import ReplicaStatus
from core.contracts.revocations import Revocation
from core.contracts.routes import AdapterRoute
from core.contracts.snapshots import GatewayStatus, SnapshotKind
from core.settings import EngineKeySettings, Fragment, PostgresSettings, RedisSettings
from data_plane.engine.control_protocol import EngineInventory
from tenora.doctor.compare import Look, ReplicaLook
from tenora.settings import StackSettings
from tenora.stack.daemon import is_up
from tenora.stack.status import running_stack

_ENGINE_TIMEOUT_S: Final = 15
_ENGINES_AT_ONCE: Final = 16
_REDIS_TIMEOUT_S: Final = 5
_GATEWAYS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Sources:
    """Open connections to Redis, Postgres and the engines."""

    redis: Redis
    engine: sa.Engine
    engine_key: str


@contextmanager
def sources(settings: StackSettings) -> Iterator[Sources]:
    """Connections of the stack that runs under ``TENORA_HOME``, else those that the TENORA_… variables name."""
    environment = running_stack(settings).environment() if is_up(settings) else dict(os.environ)
    given = {name.removeprefix("TENORA_").lower(): value for name, value in environment.items()}
    engine = db.connect(PostgresSettings(**_of(PostgresSettings, given)))
    redis_url = RedisSettings(**_of(RedisSettings, given)).redis_url
    engine_key = EngineKeySettings(**_of(EngineKeySettings, given)).engine_key.get_secret_value()
    with Redis.from_url(redis_url, socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S) as redis:
        try:
            yield Sources(redis, engine, engine_key)
        finally:
            engine.dispose()


def _of(kind: type[Fragment], given: Mapping[str, str]) -> dict[str, Any]:
    """The variables that ``kind`` reads, as text; pydantic converts them."""
    return {name: given[name] for name in kind.model_fields if name in given}


def look(at: Sources) -> Look:
    """Read everything once. An engine that does not answer is a finding.

    Raises redis.RedisError or sqlalchemy.exc.SQLAlchemyError.

    Engines are read before Redis, so that what an agent published meanwhile is newer than the engine's state.
    """
    asked = fleet.statuses(at.redis)
    with ThreadPoolExecutor(_ENGINES_AT_ONCE) as asking:
        answers = asking.map(lambda status: engine_truth(status, at.engine_key), asked)
        truths = {status.id: truth for status, truth in zip(asked, answers, strict=True)}
    stored, aliases = _stored(at.engine)
    published: dict[str, dict[str, str]] = {kind: _hash(at.redis, kind) for kind in projections()}
    return Look(
        replicas=tuple(
            ReplicaLook(
                status=status, residency=fleet.published_residency(at.redis, status.id), truth=truths.get(status.id)
            )
            for status in fleet.published_statuses(at.redis)
            if status.id in truths or not status.has_engine
        ),
        gateways=_gateways(at.redis),
        position=_position(at.redis),
        published=published,
        stored=stored,
        revocations=tuple(msgspec.json.decode(value, type=Revocation) for value in published["revocations"].values()),
        routes={name: msgspec.json.decode(value, type=AdapterRoute) for name, value in published["adapters"].items()},
        aliases=aliases,
    )


def _gateways(redis: Redis) -> tuple[GatewayStatus, ...]:
    names = [name.decode() for name in cast("list[bytes]", redis.zrange(redis_keys.GATEWAYS, 0, _GATEWAYS_MAX - 1))]
    values = cast("list[bytes | None]", redis.mget([redis_keys.gateway(name) for name in names])) if names else []
    return tuple(msgspec.json.decode(value, type=GatewayStatus) for value in values if value is not None)


def _position(redis: Redis) -> tuple[str, int] | None:
    epoch, generation = cast("list[bytes | None]", redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"]))
    return None if epoch is None or generation is None else (epoch.decode(), int(generation))


def _hash(redis: Redis, kind: SnapshotKind) -> dict[str, str]:
    fields = cast("dict[bytes, bytes]", redis.hgetall(redis_keys.snapshot(kind)))
    return {name.decode(): value.decode() for name, value in fields.items()}


def _stored(engine: sa.Engine) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], bool]]:
    """What Postgres says should be published, and whether the revisions of each alias are ready."""
    with db.unit_of_work(engine) as session:
        stored = {
            kind: {name: value.value for name, value in projection.every(session) if value.value is not None}
            for kind, projection in projections().items()
        }
        return cast("dict[str, dict[str, str]]", stored), _aliases(session)


def _aliases(session: Session) -> dict[tuple[str, str], bool]:
    """By ``<tenant>/<adapter>:<alias>`` and revision id."""
    live = (
        select(Alias, Adapter)
        .join(Adapter, col(Adapter.id) == Alias.adapter_id)
        .where(col(Adapter.deleted_at).is_(None))
    )
    found = {
        (f"{adapter.tenant_id}/{adapter.name}:{alias.name}", revision_id): adapter.id
        for alias, adapter in session.exec(live)
        for revision_id in alias.weights
    }
    named = {revision_id for _, revision_id in found}
    ready = select(Revision.id, Revision.adapter_id).where(col(Revision.id).in_(named), Revision.status == "ready")
    owners = {revision_id: adapter_id for revision_id, adapter_id in session.exec(ready)}  # noqa: C416 - rows are no pairs to mypy
    return {pair: owners.get(pair[1]) == adapter_id for pair, adapter_id in found.items()}


def engine_truth(status: ReplicaStatus, engine_key: str) -> EngineInventory | str:
    """What the engine holds, or the reason why it did not answer."""
    try:
        response = httpx.get(
            f"{status.url}/tenora/v1/residency",
            headers={"Authorization": f"Bearer {engine_key}"},
            timeout=_ENGINE_TIMEOUT_S,
        )
        if response.status_code != 200:
            return f"answered {response.status_code}: {response.text[:200]}"
        return msgspec.json.decode(response.content, type=EngineInventory)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        return f"{type(error).__name__}: {error}"
