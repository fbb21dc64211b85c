"""The snapshots in Redis: appends single changes, or replaces everything in one step.

Every write is a MULTI that succeeds only if no other process has published since the writer read the position (WATCH on
epoch and generation). A value read from Postgres can therefore never overwrite a newer one. Every change and the whole
are signed (``core.snapshot_signing``). The hashes from which the next signature goes on are in Redis too; they are
believed only if the signed root has their digests, else everything is published again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import structlog
from redis import Redis, WatchError
from redis.client import Pipeline

from control_plane.publishing.projection import Published
from core import redis_keys
from core.contracts.snapshots import SnapshotChange, SnapshotKind
from core.snapshot_signing import (
    ForgedSnapshot,
    SetHash,
    SnapshotRoot,
    SnapshotSigner,
    SnapshotVerifier,
    check_digest,
    read_root,
)

KINDS: tuple[SnapshotKind, ...] = (
    "tenants", "keys", "base_models", "pools", "groups", "adapters", "revocations", "pins", "cordons",
)  # fmt: skip
_STAGING_EXPIRES_S = 600


class PublishConflict(Exception):
    """Another process published between the read and the write. Read again."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a snapshot. Generations count the changes within an epoch."""

    epoch: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What Redis has: a position that we signed, and the hash of the entries of each kind."""

    position: Position
    published_at_ms: int
    hashes: Mapping[SnapshotKind, SetHash]

    def next_ms(self, now_ms: int) -> int:
        """The time of the next publication: times grow even where a clock does not."""
        return max(now_ms, self.published_at_ms + 1)


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


def read_position(redis: Redis) -> Position | None:
    """What Redis says its position is. Not verified: believe ``read_stored``."""
    epoch, generation = cast("list[bytes | None]", redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"]))
    if epoch is None or generation is None or not generation.isdigit():
        return None
    return Position(epoch=epoch.decode(errors="replace"), generation=int(generation))


def read_stored(pipe: Pipeline, verifier: SnapshotVerifier) -> Stored | None:
    """What Redis has, or None without a snapshot of ours. Call it on a watched pipeline, before MULTI."""
    fields = ["epoch", "generation", "root", "root_signature", *(_hash_field(kind) for kind in KINDS)]
    values = cast("list[bytes | None]", pipe.hmget(redis_keys.SNAPSHOT_META, fields))
    if values[0] is None:
        return None
    try:
        return _verified(values, verifier)
    except ForgedSnapshot as error:
        structlog.get_logger().error("snapshot in Redis is not ours; publishing everything", error=str(error))
        return None


def _verified(values: Sequence[bytes | None], verifier: SnapshotVerifier) -> Stored:
    epoch, generation, root_bytes, signature, *states = values
    root = read_root(verifier, root_bytes, signature)
    if (epoch, generation) != (root.epoch.encode(), str(root.generation).encode()):
        raise ForgedSnapshot("the position is not the signed one")
    hashes = {kind: SetHash(state or b"") for kind, state in zip(KINDS, states, strict=True)}
    for kind, found in hashes.items():
        check_digest(root, kind, found)
    position = Position(epoch=root.epoch, generation=root.generation)
    return Stored(position=position, published_at_ms=root.published_at_ms, hashes=hashes)


def append(pipe: Pipeline, stored: Stored, changes: Sequence[Change], signer: SnapshotSigner, now_ms: int) -> Position:
    """Publish the changes of distinct fields in order, in one MULTI. Returns the new position. ``now_ms`` is Unix
    milliseconds.
    """
    old_values = _held(pipe, changes)
    at, published_at_ms = stored.position, stored.next_ms(now_ms)
    pipe.multi()
    for change in changes:
        at = Position(epoch=at.epoch, generation=at.generation + 1)
        for sha256, content in change.published.blobs.items():
            pipe.set(redis_keys.blob(sha256), content)
        found, value = stored.hashes[change.kind], change.published.value
        old_value = old_values[change.kind, change.field]
        if old_value is not None:
            found.remove(change.field, old_value)
        if value is None:
            pipe.hdel(redis_keys.snapshot(change.kind), change.field)
        else:
            found.add(change.field, value.encode())
            pipe.hset(redis_keys.snapshot(change.kind), change.field, value)
        _append_change(pipe, at, change.kind, change.field, value, published_at_ms, signer)
    changed = {change.kind: stored.hashes[change.kind] for change in changes}
    _write_root(pipe, at, stored.hashes, changed, published_at_ms, signer)
    pipe.execute()
    return at


def _held(pipe: Pipeline, changes: Sequence[Change]) -> dict[tuple[SnapshotKind, str], bytes | None]:
    """What Redis has of the fields of these changes."""
    held: dict[tuple[SnapshotKind, str], bytes | None] = {}
    for kind in {change.kind for change in changes}:
        fields = [change.field for change in changes if change.kind == kind]
        values = cast("list[bytes | None]", pipe.hmget(redis_keys.snapshot(kind), fields))
        held |= {(kind, field): value for field, value in zip(fields, values, strict=True)}
    return held


def stage(redis: Redis, kind: SnapshotKind, epoch: str, fields: Sequence[tuple[str, Published]], into: SetHash) -> None:
    """Write part of a rebuilt snapshot to its staging key, which no gateway reads and which expires after a crash.
    Adds the entries to ``into``.
    """
    staging = redis_keys.snapshot_staging(kind, epoch)
    with redis.pipeline(transaction=False) as pipe:
        for field, content in fields:
            for sha256, blob in content.blobs.items():
                pipe.set(redis_keys.blob(sha256), blob)
            assert content.value is not None, "a rebuild reads only fields with a value"
            into.add(field, content.value.encode())
            pipe.hset(staging, field, content.value)
        pipe.expire(staging, _STAGING_EXPIRES_S)
        pipe.execute()


def replace(
    pipe: Pipeline,
    epoch: str,
    staged: Mapping[SnapshotKind, SetHash],
    signer: SnapshotSigner,
    now_ms: int,
    *,
    heartbeats_uncertain: bool,
) -> Position:
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
    hashes = {kind: staged.get(kind, SetHash()) for kind in KINDS}
    _write_root(pipe, new, hashes, hashes, now_ms, signer)
    if heartbeats_uncertain:
        pipe.set(redis_keys.SNAPSHOT_UNSURE, 1, ex=redis_keys.GATEWAYS_LEASE_S_MAX)
    _append_change(pipe, new, "tenants", "", None, now_ms, signer)
    pipe.execute()
    return new


def _write_root(
    pipe: Pipeline,
    at: Position,
    hashes: Mapping[SnapshotKind, SetHash],
    changed: Mapping[SnapshotKind, SetHash],
    published_at_ms: int,
    signer: SnapshotSigner,
) -> None:
    digests: dict[str, str] = {kind: found.digest for kind, found in hashes.items()}
    root = msgspec.json.encode(
        SnapshotRoot(epoch=at.epoch, generation=at.generation, published_at_ms=published_at_ms, digests=digests)
    )
    signature = signer.sign("root", root)
    pipe.hset(
        redis_keys.SNAPSHOT_META,
        mapping={"epoch": at.epoch, "generation": at.generation, "root": root, "root_signature": signature},
    )
    if changed:
        pipe.hset(redis_keys.SNAPSHOT_META, mapping={_hash_field(kind): found.state for kind, found in changed.items()})


def _hash_field(kind: SnapshotKind) -> str:
    return f"set_hash:{kind}"


def _append_change(
    pipe: Pipeline,
    at: Position,
    kind: SnapshotKind,
    field: str,
    value: str | None,
    published_at_ms: int,
    signer: SnapshotSigner,
) -> None:
    change = msgspec.json.encode(
        SnapshotChange(
            epoch=at.epoch, generation=at.generation, kind=kind, field=field, value=value,
            published_at_ms=published_at_ms,
        )
    )  # fmt: skip
    pipe.xadd(
        redis_keys.SNAPSHOT_CHANGES,
        {"change": change, "signature": signer.sign("change", change)},
        maxlen=redis_keys.SNAPSHOT_CHANGES_MAX,
        approximate=True,
    )
