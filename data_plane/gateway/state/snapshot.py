"""The published configuration in this process: loaded as a whole, then kept current from the change stream.

Fails open for reads: while Redis is away, the last snapshot serves. Reservations, which need Redis, fail closed. Fails
closed on what the control plane did not sign, and on a snapshot older than one that was seen before.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.grants import KeyGrant, TenantGrant
from core.contracts.routes import AdapterRoute, BaseModelRoute, GroupRoute, PoolRoute
from core.contracts.snapshots import SnapshotChange, SnapshotKind
from core.newest_published import NewestPublished
from core.snapshot_signing import ForgedSnapshot, SetHash, SnapshotRoot, SnapshotVerifier, check_digest, read_root
from data_plane.gateway import metrics

_log = structlog.get_logger()
_RETRY_S: Final = 0.5
_KINDS: Final[tuple[SnapshotKind, ...]] = ("base_models", "pools", "groups", "tenants", "keys", "adapters")
_CHANGES_AT_ONCE: Final = 50
_ENTRIES_AT_ONCE: Final = 250
_keys = msgspec.json.Decoder(KeyGrant)
_tenants = msgspec.json.Decoder(TenantGrant)
_adapters = msgspec.json.Decoder(AdapterRoute)
_base_models = msgspec.json.Decoder(BaseModelRoute)
_pools = msgspec.json.Decoder(PoolRoute)
_groups = msgspec.json.Decoder(GroupRoute)
_change = msgspec.json.Decoder(SnapshotChange)


class SnapshotGap(Exception):
    """The next change does not follow the generation that this process has: it must load the whole snapshot."""


class Tables:
    """The published entities, by their fields. Every load replaces the whole instance."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyGrant] = {}
        self.tenants: dict[str, TenantGrant] = {}
        self.adapters: dict[str, dict[str, AdapterRoute]] = {}  # by tenant id, then name
        self.base_models: dict[str, BaseModelRoute] = {}
        self.pools: dict[str, PoolRoute] = {}  # those that do not serve all
        self.groups: dict[str, dict[str, GroupRoute]] = {}  # by tenant id, or "" of the platform, then name
        self.hub_names: dict[str, BaseModelRoute] = {}

    def put(self, kind: str, field: str, value: str | bytes | None) -> None:
        """Set one entity, or remove it where ``value`` is None. Raises msgspec.ValidationError for an unreadable
        value.
        """
        match kind:
            case "keys":
                _set(self.keys, field, None if value is None else _keys.decode(value))
            case "tenants":
                _set(self.tenants, field, None if value is None else _tenants.decode(value))
            case "adapters":
                tenant_id, _, name = field.partition("/")
                _set(self.adapters.setdefault(tenant_id, {}), name, None if value is None else _adapters.decode(value))
            case "pools":
                _set(self.pools, field, None if value is None else _pools.decode(value))
            case "groups":
                tenant_id, _, name = field.partition("/")
                _set(self.groups.setdefault(tenant_id, {}), name, None if value is None else _groups.decode(value))
            case "base_models":
                if old := self.base_models.get(field):
                    self.hub_names.pop(old.hub_name, None)
                route = None if value is None else _base_models.decode(value)
                _set(self.base_models, field, route)
                if route is not None:
                    self.hub_names[route.hub_name] = route


def _set(table: dict[str, Any], field: str, value: object) -> None:
    if value is None:
        table.pop(field, None)
    else:
        table[field] = value


class Snapshot:
    """The tables, and the task that reads the change stream. ``tables`` is None until the first load. ``epoch`` and
    ``generation`` name the version, and ``advanced`` is set whenever it changes. ``on_load`` is called after each load
    of the whole snapshot.
    """

    def __init__(
        self,
        redis: Redis,
        verifier: SnapshotVerifier,
        newest: NewestPublished,
        *,
        block_ms: int,
        batch_max: int,
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self._redis = redis
        self._verifier = verifier
        self._newest = newest
        self._on_load = on_load
        self._block_ms = block_ms
        self._batch_max = batch_max
        self.epoch = ""
        self._last_id = "0-0"
        self.generation = -1
        self.tables: Tables | None = None
        self.advanced = asyncio.Event()

    async def run_forever(self) -> None:
        """Load the snapshot and keep it current. Never returns; while Redis is away, it retries and logs once."""
        reachable = True
        while True:
            try:
                if self.tables is None or not reachable:
                    await self.load()
                reachable = True
                await self._run_once()
            except SnapshotGap as gap:
                _log.info("snapshot reloading", reason=str(gap))
                await self._load_after_gap()
            except (RedisError, OSError, msgspec.MsgspecError, ForgedSnapshot) as error:
                self._refused(error, first=reachable)
                reachable = False
                await asyncio.sleep(_RETRY_S)

    async def load(self) -> bool:
        """Read the whole snapshot in one transaction. False, and no change, if none has been published. Raises
        ForgedSnapshot.
        """
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hmget(redis_keys.SNAPSHOT_META, ["root", "root_signature"])
            pipeline.xrevrange(redis_keys.SNAPSHOT_CHANGES, count=1)
            for kind in _KINDS:
                pipeline.hgetall(redis_keys.snapshot(kind))
            (root_bytes, signature), newest, *hashes = await pipeline.execute()
        if root_bytes is None:
            return False
        root = read_root(self._verifier, root_bytes, signature)
        self._newest.check(root.published_at_ms)
        tables = Tables()
        for kind, fields in zip(_KINDS, hashes, strict=True):
            await _verify(root, kind, fields)
            for field, value in fields.items():
                try:
                    tables.put(kind, field.decode(), value)
                except msgspec.MsgspecError as error:
                    _log.error("published entity unreadable", kind=kind, field=field.decode(), error=str(error))
        self._last_id = newest[0][0].decode() if newest else "0-0"
        self.epoch, self.generation, self.tables = root.epoch, root.generation, tables
        self._newest.advance(root.published_at_ms)
        self._announce()
        self._on_load()
        metrics.SNAPSHOT_LOADS.inc()
        _log.info("snapshot loaded", epoch=self.epoch, generation=self.generation, keys=len(tables.keys))
        return True

    async def _load_after_gap(self) -> None:
        try:
            if not await self.load():
                await asyncio.sleep(_RETRY_S)
        except (RedisError, OSError, msgspec.MsgspecError, ForgedSnapshot) as error:
            self._refused(error, first=True)
            await asyncio.sleep(_RETRY_S)

    def _refused(self, error: Exception, *, first: bool) -> None:
        if isinstance(error, ForgedSnapshot):
            metrics.SNAPSHOTS_FORGED.inc()
        if first:
            _log.warning("snapshot not refreshed; serving the last one", error=repr(error))

    async def _run_once(self) -> None:
        """Wait for changes and apply them. When none came, compare generations to detect a missed one."""
        if self.tables is None:
            raise SnapshotGap("nothing is loaded")
        reply = await self._redis.xread(
            {redis_keys.SNAPSHOT_CHANGES: self._last_id}, count=self._batch_max, block=self._block_ms
        )
        if not reply:
            published: list[Any] = await self._redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            epoch, generation = published
            if epoch is not None and (epoch.decode(), int(generation)) != (self.epoch, self.generation):
                raise SnapshotGap("the published generation differs")
            return
        streams = reply.values() if isinstance(reply, dict) else (entries for _, entries in reply)
        for entries in streams:
            for number, (entry_id, entry) in enumerate(_flatten(entries)):
                self._apply(entry[b"change"], entry.get(b"signature", b""))
                self._last_id = entry_id.decode()
                if number % _CHANGES_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a signature takes 0.1 ms
        self._announce()

    def _announce(self) -> None:
        metrics.SNAPSHOT_GENERATION.set(self.generation)
        self.advanced.set()

    def _apply(self, encoded: bytes, signature: bytes) -> None:
        assert self.tables is not None
        change = _change.decode(encoded)
        if change.epoch != self.epoch:
            raise SnapshotGap("the snapshot was rebuilt")
        if change.generation <= self.generation:
            return  # the load already included it
        if change.generation != self.generation + 1:
            raise SnapshotGap(f"generation {change.generation} does not follow {self.generation}")
        self._verifier.verify("change", encoded, signature)
        self.tables.put(change.kind, change.field, change.value)
        self.generation = change.generation
        self._newest.advance(change.published_at_ms)


async def _verify(root: SnapshotRoot, kind: SnapshotKind, fields: Mapping[bytes, bytes]) -> None:
    """Raises ForgedSnapshot unless these are the entries that the root signs. Other work goes on in between."""
    found = SetHash()
    for number, (field, value) in enumerate(fields.items()):
        found.add(field.decode(), value)
        if number % _ENTRIES_AT_ONCE == 0:
            await asyncio.sleep(0)
    check_digest(root, kind, found)


def _flatten(entries: Any) -> Any:  # redis-py answers XREAD in two shapes, by protocol version
    """RESP3 nests a stream's entries one level deeper than RESP2."""
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list | tuple):
        return [entry for batch in entries for entry in batch]
    return entries
