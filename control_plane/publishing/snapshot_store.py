"""The snapshots in Redis: appends single changes, or replaces everything in one step.

Every write is a MULTI that succeeds only if no other process has published since the writer read the position (WATCH on
epoch and generation). A value read from Postgres can therefore never overwrite a newer one.
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
    """Another process published between the read and the write. Read again."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a snapshot. Generations count the changes within an epoch."""

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
    """A pipeline that writes only if the position does not change. Raises PublishConflict otherwise."""
    with redis.pipeline() as pipe:
        pipe.watch(redis_keys.SNAPSHOT_META)  # type: ignore[no-untyped-call] # redis-py does not annotate this method
        try:
            yield pipe
        except WatchError as error:
            raise PublishConflict from error


def position(client: Redis | Pipeline) -> Position | None:
    """The position of the snapshot in Redis, or None without a snapshot. On a watched pipeline, call it before
    MULTI.
    """
    epoch, generation = cast("list[bytes | None]", client.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"]))
    if epoch is None or generation is None:
        return None
    return Position(epoch=epoch.decode(), generation=int(generation))


def append(pipe: Pipeline, now: Position, changes: Sequence[Change]) -> Position:
    """Publish the changes in order, in one MULTI. Returns the new position."""
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
    """Write part of a rebuilt snapshot to its staging key, which no gateway reads and which expires after a crash."""
    staging = redis_keys.snapshot_staging(kind, epoch)
    with redis.pipeline(transaction=False) as pipe:
        for field, content in fields:
            for sha256, blob in content.blobs.items():
                pipe.set(redis_keys.blob(sha256), blob)
            assert content.value is not None, "a rebuild reads only fields with a value"
            pipe.hset(staging, field, content.value)
        pipe.expire(staging, _STAGING_EXPIRES_S)
        pipe.execute()


def replace(pipe: Pipeline, epoch: str, staged: Sequence[SnapshotKind], *, heartbeats_uncertain: bool) -> Position:
    """Replace the snapshots with the staged ones in one MULTI, and append a change of the new epoch for gateways.
    ``heartbeats_uncertain`` marks, for the longest lease, that heartbeats of serving gateways may be missing.
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
