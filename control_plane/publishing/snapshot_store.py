"""The snapshots' side in Redis: single changes appended, or everything replaced in one step.

Every write is a MULTI that happens only if nobody else has published since the writer looked (WATCH on the epoch and
generation), so what was read from Postgres before another's newer write can never overwrite it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
from redis import Redis, WatchError
from redis.client import Pipeline

from control_plane.publishing.projection import Published
from core import redis_keys
from core.contracts.snapshots import SnapshotChange, SnapshotKind

KINDS: tuple[SnapshotKind, ...] = ("tenants", "keys", "base_models", "adapters", "revocations", "pins")
_STAGING_EXPIRES_S = 600


class PublishConflict(Exception):
    """Somebody else published between the look and the write. Look again."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a snapshot has come. Generations count changes within an epoch."""

    epoch: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One field with the value to publish."""

    kind: SnapshotKind
    field: str
    published: Published


@contextmanager
def watched(redis: Redis) -> Iterator[Pipeline]:
    """A pipeline that writes only if the position stays what it is now; raises PublishConflict otherwise."""
    with redis.pipeline() as pipe:
        pipe.watch(redis_keys.SNAPSHOT_META)  # type: ignore[no-untyped-call] # redis-py left this one method out
        try:
            yield pipe
        except WatchError as error:
            raise PublishConflict from error


def position(client: Redis | Pipeline) -> Position | None:
    """Where the snapshot in Redis stands; None where there is none. On a watched pipeline, before its MULTI."""
    epoch, generation = cast("list[bytes | None]", client.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"]))
    if epoch is None or generation is None:
        return None
    return Position(epoch=epoch.decode(), generation=int(generation))


def append(pipe: Pipeline, now: Position, changes: Sequence[Change]) -> Position:
    """Publish changes one after the other, in one MULTI; returns the new position."""
    pipe.multi()
    generation = now.generation
    for change in changes:
        generation += 1
        for sha256, content in change.published.blobs.items():
            pipe.set(redis_keys.blob(sha256), content)
        value = change.published.value
        if value is None:
            pipe.hdel(redis_keys.snapshot(change.kind), change.field)
        else:
            pipe.hset(redis_keys.snapshot(change.kind), change.field, value)
        _append_change(pipe, Position(epoch=now.epoch, generation=generation), change.kind, change.field, value)
    pipe.hincrby(redis_keys.SNAPSHOT_META, "generation", len(changes))
    pipe.execute()
    return Position(epoch=now.epoch, generation=generation)


def stage(redis: Redis, kind: SnapshotKind, epoch: str, fields: Sequence[tuple[str, Published]]) -> None:
    """Write part of a rebuilt snapshot where no gateway looks. It expires by itself if the rebuild is cut short."""
    staging = redis_keys.snapshot_staging(kind, epoch)
    with redis.pipeline(transaction=False) as pipe:
        for field, content in fields:
            for sha256, blob in content.blobs.items():
                pipe.set(redis_keys.blob(sha256), blob)
            assert content.value is not None, "a rebuild reads only what has a value"
            pipe.hset(staging, field, content.value)
        pipe.expire(staging, _STAGING_EXPIRES_S)
        pipe.execute()


def replace(pipe: Pipeline, epoch: str, staged: Sequence[SnapshotKind], *, heartbeats_uncertain: bool) -> Position:
    """Put the staged snapshots in place of the old in one MULTI, and tell gateways by a change of the new epoch.
    ``heartbeats_uncertain`` says for a while that heartbeats of gateways that serve may be missing.
    """
    new = Position(epoch=epoch, generation=1)
    pipe.multi()
    for kind in KINDS:
        if kind in staged:
            pipe.rename(redis_keys.snapshot_staging(kind, epoch), redis_keys.snapshot(kind))
            pipe.persist(redis_keys.snapshot(kind))
        else:
            pipe.delete(redis_keys.snapshot(kind))
    pipe.hset(redis_keys.SNAPSHOT_META, mapping={"epoch": epoch, "generation": new.generation})
    if heartbeats_uncertain:
        pipe.set(redis_keys.SNAPSHOT_UNSURE, 1, ex=redis_keys.GATEWAYS_LEASE_S_MAX)
    _append_change(pipe, new, "tenants", "", None)
    pipe.execute()
    return new


def _append_change(pipe: Pipeline, at: Position, kind: SnapshotKind, field: str, value: str | None) -> None:
    change = SnapshotChange(epoch=at.epoch, generation=at.generation, kind=kind, field=field, value=value)
    pipe.xadd(
        redis_keys.SNAPSHOT_CHANGES,
        {"change": msgspec.json.encode(change)},
        maxlen=redis_keys.SNAPSHOT_CHANGES_MAX,
        approximate=True,
    )
