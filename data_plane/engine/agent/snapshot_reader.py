"""Reads one kind of the control plane's published entities: the whole hash, whenever something was published.

Agents do not read the change stream as gateways do: their data is small, and a delay of a second is acceptable.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import msgspec
import structlog
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.snapshots import SnapshotKind
from core.errors import Unavailable
from core.newest_published import NewestPublished
from core.snapshot_signing import SetHash, SnapshotVerifier, check_digest, read_root

_log = structlog.get_logger()
T = TypeVar("T", bound=msgspec.Struct)


class SnapshotMissing(Unavailable):
    """Redis has no snapshot: nothing was published yet, or it was lost and will soon be published again."""

    default_code = "nothing_published"


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Where the snapshot is, and how it is verified."""

    redis: Redis
    verifier: SnapshotVerifier
    newest: NewestPublished


class SnapshotReader(Generic[T]):
    """Reads ``redis_keys.snapshot(kind)``. While nothing new is published, a call costs one small read."""

    def __init__(self, source: SnapshotSource, kind: SnapshotKind, shape: type[T]) -> None:
        self._redis = source.redis
        self._source = source
        self._kind: SnapshotKind = kind
        self._decoder = msgspec.json.Decoder(shape)
        self._position: tuple[bytes | None, ...] = ()
        self.epoch = ""

    async def changed(self) -> dict[str, T] | None:
        """Every entity by its field, or None when nothing was published since the last call. ``epoch`` changes when
        everything was published again after Redis lost data. Raises SnapshotMissing, ForgedSnapshot, redis.RedisError.
        """
        if await self._read_position(self._redis) == self._position:
            return None
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            pipe.hmget(redis_keys.SNAPSHOT_META, ["root", "root_signature"])
            pipe.hgetall(redis_keys.snapshot(self._kind))
            meta, (root_bytes, signature), fields = await pipe.execute()
        position = _position(meta)
        root = read_root(self._source.verifier, root_bytes, signature)
        self._source.newest.check(root.published_at_ms)
        entries = SetHash()
        for field, value in fields.items():
            entries.add(field.decode(), value)
        check_digest(root, self._kind, entries)
        self._source.newest.advance(root.published_at_ms)
        found: dict[str, T] = {}
        for field, value in fields.items():
            try:
                found[field.decode()] = self._decoder.decode(value)
            except msgspec.MsgspecError as error:
                _log.error("invalid published entity", kind=self._kind, field=field.decode(), error=str(error))
        self._position, self.epoch = position, root.epoch
        return found

    async def _read_position(self, redis: Redis) -> tuple[bytes | None, ...]:
        return _position(await redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"]))


def _position(meta: object) -> tuple[bytes | None, ...]:
    position = tuple(cast("list[bytes | None]", meta))
    if None in position:
        raise SnapshotMissing("the control plane has published no snapshot yet")
    return position
