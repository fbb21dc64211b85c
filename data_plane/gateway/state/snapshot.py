"""What the control plane has published, held in this process: loaded whole, then kept current from the change stream.

Fails open for reads: while Redis is away the last snapshot serves (reservations, which need Redis, fail closed).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.grants import KeyGrant, TenantGrant
from core.contracts.routes import AdapterRoute, BaseModelRoute
from core.contracts.snapshots import SnapshotChange
from data_plane.gateway import metrics

_log = structlog.get_logger()
_RETRY_S: Final = 0.5
_keys = msgspec.json.Decoder(KeyGrant)
_tenants = msgspec.json.Decoder(TenantGrant)
_adapters = msgspec.json.Decoder(AdapterRoute)
_base_models = msgspec.json.Decoder(BaseModelRoute)
_change = msgspec.json.Decoder(SnapshotChange)


class Gap(Exception):
    """The change stream does not continue what this process holds."""


class Tables:
    """The published entities, by their fields. A new instance replaces the old one whole on every load."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyGrant] = {}
        self.tenants: dict[str, TenantGrant] = {}
        self.adapters: dict[str, dict[str, AdapterRoute]] = {}  # by tenant id, then name
        self.base_models: dict[str, BaseModelRoute] = {}
        self.hub_names: dict[str, BaseModelRoute] = {}

    def put(self, kind: str, field: str, value: str | bytes | None) -> None:
        """Set or remove one entity. Raises msgspec.ValidationError for a value that cannot be read."""
        match kind:
            case "keys":
                _set(self.keys, field, None if value is None else _keys.decode(value))
            case "tenants":
                _set(self.tenants, field, None if value is None else _tenants.decode(value))
            case "adapters":
                tenant_id, _, name = field.partition("/")
                _set(self.adapters.setdefault(tenant_id, {}), name, None if value is None else _adapters.decode(value))
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
    """The tables and the task that follows the stream. ``tables`` is None until the first load; ``epoch`` and
    ``generation`` say how far they are, and ``advanced`` is set whenever that changes. ``on_load`` is called whenever
    all of them have been read.
    """

    def __init__(
        self, redis: Redis, *, block_ms: int, batch_max: int, on_load: Callable[[], None] = lambda: None
    ) -> None:
        self._redis = redis
        self._on_load = on_load
        self._block_ms = block_ms
        self._batch_max = batch_max
        self.epoch = ""
        self._last_id = "0-0"
        self.generation = -1
        self.tables: Tables | None = None
        self.advanced = asyncio.Event()

    async def run_forever(self) -> None:
        """Load and keep current, for ever. Redis going away is logged once and waited out."""
        reachable = True
        while True:
            try:
                if self.tables is None or not reachable:
                    await self.load()
                reachable = True
                await self._step()
            except Gap as gap:
                _log.info("snapshot is read again", reason=str(gap))
                await self._load_after_gap()
            except (RedisError, OSError, msgspec.MsgspecError) as error:
                if reachable:
                    _log.warning("snapshot cannot be refreshed; serving the last one", error=repr(error))
                reachable = False
                await asyncio.sleep(_RETRY_S)

    async def load(self) -> bool:
        """Read everything at once. False, and nothing changed, where nothing has been published."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            pipeline.xrevrange(redis_keys.SNAPSHOT_CHANGES, count=1)
            kinds: tuple[str, ...] = ("base_models", "tenants", "keys", "adapters")
            for kind in kinds:
                pipeline.hgetall(redis_keys.snapshot(kind))  # type: ignore[arg-type]  # the tuple's members are the literals
            (epoch, generation), newest, *hashes = await pipeline.execute()
        if epoch is None or generation is None:
            return False
        tables = Tables()
        for kind, fields in zip(kinds, hashes, strict=True):
            for field, value in fields.items():
                try:
                    tables.put(kind, field.decode(), value)
                except msgspec.MsgspecError as error:
                    _log.error("a published entity cannot be read", kind=kind, field=field.decode(), error=str(error))
        self._last_id = newest[0][0].decode() if newest else "0-0"
        self.epoch, self.generation, self.tables = epoch.decode(), int(generation), tables
        self._tell()
        self._on_load()
        metrics.SNAPSHOT_LOADS.inc()
        _log.info("snapshot loaded", epoch=self.epoch, generation=self.generation, keys=len(tables.keys))
        return True

    async def _load_after_gap(self) -> None:
        try:
            if not await self.load():
                await asyncio.sleep(_RETRY_S)
        except (RedisError, OSError) as error:
            _log.warning("snapshot cannot be refreshed; serving the last one", error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def _step(self) -> None:
        """Wait for changes and apply them; when none came, make sure that none was missed."""
        if self.tables is None:
            raise Gap("nothing is loaded")
        reply = await self._redis.xread(
            {redis_keys.SNAPSHOT_CHANGES: self._last_id}, count=self._batch_max, block=self._block_ms
        )
        if not reply:
            published: list[Any] = await self._redis.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            epoch, generation = published
            if epoch is not None and (epoch.decode(), int(generation)) != (self.epoch, self.generation):
                raise Gap("the published generation is another")
            return
        streams = reply.values() if isinstance(reply, dict) else (entries for _, entries in reply)
        for entries in streams:
            for entry_id, entry in _flatten(entries):
                self._apply(_change.decode(entry[b"change"]))
                self._last_id = entry_id.decode()
        self._tell()

    def _tell(self) -> None:
        metrics.SNAPSHOT_GENERATION.set(self.generation)
        self.advanced.set()

    def _apply(self, change: SnapshotChange) -> None:
        assert self.tables is not None
        if change.epoch != self.epoch:
            raise Gap("the snapshot was rebuilt")
        if change.generation <= self.generation:
            return  # the load had it already
        if change.generation != self.generation + 1:
            raise Gap(f"generation {change.generation} does not follow {self.generation}")
        self.tables.put(change.kind, change.field, change.value)
        self.generation = change.generation


def _flatten(entries: Any) -> Any:  # redis-py answers XREAD in two shapes, by protocol version
    """RESP3 nests a stream's entries once more than RESP2."""
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list | tuple):
        return [entry for batch in entries for entry in batch]
    return entries
