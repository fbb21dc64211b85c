"""Keeps the engines' counters, which agents report to Redis each second, in Postgres: Redis may lose them.

A crash of billing loses nothing, because counters are totals since the engine's start. If Redis loses its data within
the second after an engine has died, before the worker reads it, what that engine counted in its last second is lost,
and of the agent's own requests what it counted in its last minute.
"""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, cast

import msgspec
import redis as redis_client
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.reconciliation.models import EngineHour
from billing.usage.sums import hour_of
from core import redis_keys
from core.contracts.replicas import EngineCounters
from core.db import database_now, unit_of_work

_COUNTS: Final = EngineCounters.__struct_fields__
_FORGET_AFTER: Final = timedelta(days=7)
_PROBES_EVERY_S: Final = 60

Boot = str
"""``<replica id>/<boot id>``, the name of an engine process in Redis."""


class EngineCountKeeper:
    """The worker's copy of the counters: it writes those in which the tenants' part has changed since its last turn,
    and the others once a minute. An idle engine counts nothing but its probes.
    """

    def __init__(self, engine: sa.Engine, redis: redis_client.Redis) -> None:
        self._engine = engine
        self._redis = redis
        self._written: dict[Boot, tuple[EngineCounters, int]] = {}  # and when, by the monotonic clock in ns

    def run_once(self) -> None:
        """Store what changed, and remove from Redis the counters of engines that have not reported for a week."""
        reported, now_ns = read_reported(self._redis), time.monotonic_ns()
        changed = {boot: counts for boot, counts in reported.items() if self._is_due(boot, counts, now_ns)}
        if changed:
            with unit_of_work(self._engine) as session:
                store(session, changed)
        written = {boot: self._written[boot] for boot in reported.keys() - changed.keys()}
        self._written = written | {boot: (counts, now_ns) for boot, counts in changed.items()}

    def _is_due(self, boot: Boot, counts: EngineCounters, now_ns: int) -> bool:
        if (known := self._written.get(boot)) is None:
            return True
        before, at = known
        return _of_tenants(counts) != _of_tenants(before) or (
            counts != before and now_ns - at >= _PROBES_EVERY_S * 1_000_000_000
        )

    def forget_ended(self) -> None:
        """Remove the counters of engines that have counted nothing for a week from Redis. They stay in Postgres; an
        engine that still lives reports its counters again within a second.
        """
        with unit_of_work(self._engine) as session:
            before = database_now(session) - _FORGET_AFTER
            last = sa.func.max(EngineHour.reported_at)
            statement = (
                select(EngineHour.replica_id, EngineHour.boot_id)
                .group_by(EngineHour.replica_id, EngineHour.boot_id)
                .having(last < before)
            )
            ended = {f"{replica_id}/{boot_id}" for replica_id, boot_id in session.exec(statement)}
        if gone := ended.intersection(read_reported(self._redis)):
            self._redis.hdel(redis_keys.ENGINE_COUNTERS, *gone)


def _of_tenants(counts: EngineCounters) -> tuple[int, int, int]:
    return counts.tenant_tokens, counts.cached_prompt_tokens, counts.tenant_kv_page_ms


def store(session: Session, reported: Mapping[Boot, EngineCounters]) -> None:
    """Write counters under the current hour. Of two reports of one hour, the larger counts stay."""
    now = database_now(session)
    statement = insert(EngineHour)
    statement = statement.on_conflict_do_update(
        index_elements=("replica_id", "boot_id", "hour"),
        set_={
            name: sa.func.greatest(getattr(EngineHour, name), statement.excluded[name])
            for name in (*_COUNTS, "reported_at")
        },
    )
    rows = []
    for boot, counts in sorted(reported.items()):
        replica_id, _, boot_id = boot.partition("/")
        owner = {"replica_id": replica_id, "boot_id": boot_id, "hour": hour_of(now), "reported_at": now}
        rows.append(owner | msgspec.structs.asdict(counts))
    session.connection().execute(statement, rows)


def read_totals(session: Session, redis: redis_client.Redis) -> dict[Boot, EngineCounters]:
    """What every engine process has counted in all, by what Redis and Postgres say together."""
    stored = sa.select(
        col(EngineHour.replica_id),
        col(EngineHour.boot_id),
        *(sa.func.max(getattr(EngineHour, name)) for name in _COUNTS),
    ).group_by(col(EngineHour.replica_id), col(EngineHour.boot_id))
    totals: dict[Boot, EngineCounters] = {}
    for row in session.execute(stored):
        replica_id, boot_id, *largest = row
        totals[f"{replica_id}/{boot_id}"] = EngineCounters(**dict(zip(_COUNTS, largest, strict=True)))
    for boot, counts in read_reported(redis).items():
        known = totals.get(boot, counts)
        totals[boot] = EngineCounters(**{name: max(getattr(known, name), getattr(counts, name)) for name in _COUNTS})
    return totals


def read_reported(redis: redis_client.Redis) -> dict[Boot, EngineCounters]:
    """What agents have reported to Redis."""
    stored = cast("dict[bytes | str, bytes]", redis.hgetall(redis_keys.ENGINE_COUNTERS))
    return {
        boot.decode() if isinstance(boot, bytes) else boot: msgspec.json.decode(value, type=EngineCounters)
        for boot, value in stored.items()
    }
