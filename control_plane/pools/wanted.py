"""Writes what placers keep running: one round looks at each pool, its load, its revision in force and its replicas.

Only one process decides at a time. What it wrote last is where a rollout goes on, so that a new leader repeats nothing.
Without it, and without Postgres, what was wanted stays wanted. When Redis has lost that, all that serves counts as
wanted, once heartbeats have had the time to come back.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Final, cast, get_args

import msgspec
import structlog
from redis import Redis
from redis.client import Pipeline
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from control_plane import metrics
from control_plane.fleet import service as fleet
from control_plane.pools import decisions
from control_plane.pools.autoscaler import PoolBounds, PoolScaler, StartTimes
from control_plane.pools.demand import pool_signals
from control_plane.pools.models import PoolDecision, PoolRevisionRow, PoolRow
from control_plane.pools.needs import PoolNeeds
from control_plane.pools.rollout import next_counts
from control_plane.pools.service import environment_of
from control_plane.pools.settings import FleetSettings
from core import clock, db, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision, read_wanted
from core.contracts.replicas import ReplicaState, ReplicaStatus

_log: Final = structlog.get_logger()
_SETTLE_S: Final = 5.0
_LOCK: Final = 7_301_945_137  # any fixed number; one process decides at a time


class FleetDecisions:
    """The rounds of one process."""

    def __init__(
        self, engine: Engine, redis: Redis, settings: FleetSettings | None = None, *, settle_s: float = _SETTLE_S
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings or FleetSettings()
        self._settle_s = settle_s
        self._missing_since_s: dict[str, float] = {}  # pools without an entry in Redis
        self._scalers: dict[str, PoolScaler] = {}
        self._starts = StartTimes()
        self._needs = PoolNeeds()
        self._without_signals: set[str] = set()

    def run_once(self) -> bool:
        """Decide for each pool, and write what changed. Always returns False: replicas take seconds."""
        decided = False
        try:
            with db.exclusively(self._engine, _LOCK) as leads:
                if leads:
                    self._decide(time.monotonic())
                    decided = True
        finally:
            if not decided:  # another process knows better
                metrics.WANTED_REPLICAS.clear()
                metrics.FLEET_REPLICAS.clear()
                self._scalers.clear()
                self._needs = PoolNeeds()
        return False

    def _decide(self, now_s: float) -> None:
        with db.unit_of_work(self._engine) as session:
            pools = session.exec(select(PoolRow).where(col(PoolRow.revision).is_not(None))).all()
            if not pools:
                return
            before = cast("dict[bytes, bytes]", self._redis.hgetall(redis_keys.FLEET_WANTED))
            statuses = fleet.published_statuses(self._redis)
            _export({pool.name for pool in pools}, statuses)
            ready = Counter((each.pool, each.revision) for each in statuses if each.state == "ready")
            start_s = self._starts.observe(statuses, now_s)
            entries = {pool.name: _entry(before.get(pool.name.encode())) for pool in pools}
            targets = self._targets(session, pools, entries, statuses, now_s)
            found = {
                pool.name: _next(session, pool, entries[pool.name], ready, targets[pool.name], start_s.get(pool.name))
                for pool in pools
            }
        self._missing_since_s = {
            name: self._missing_since_s.get(name, now_s) for name in found if name.encode() not in before
        }
        for name, wanted in found.items():
            metrics.WANTED_REPLICAS.labels(name).set(targets[name].replicas)
            if now_s - self._missing_since_s.get(name, float("-inf")) < self._settle_s:
                continue
            encoded = msgspec.json.encode(wanted)
            if before.get(name.encode()) != encoded and self._replace(name, before.get(name.encode()), encoded):
                counts = {revision.number: revision.replicas for revision in wanted.revisions}
                _log.info("pool wanted", pool=name, replicas=counts)

    def _targets(
        self,
        session: Session,
        pools: Sequence[PoolRow],
        entries: Mapping[str, WantedPool | None],
        statuses: Sequence[ReplicaStatus],
        now_s: float,
    ) -> dict[str, PoolDecision]:
        """The decision in force for each pool, with those of this round stored."""
        latest = decisions.newest(session, [pool.name for pool in pools])
        counts = {pool.name: _count(latest.get(pool.name), entries[pool.name], pool, statuses) for pool in pools}
        growing = [pool for pool in pools if pool.replicas_min < pool.replicas_max]
        signals = pool_signals(self._redis, growing, counts, statuses)
        starts_s = {pool.name: _start_s(entries[pool.name]) for pool in growing}
        unix_s = clock.now_ms() / 1000
        expected = self._needs.expected(session, starts_s, unix_s) if self._settings.fleet_forecast else {}
        for pool in pools:
            name, before = pool.name, counts[pool.name]
            if name in signals and signals[name] is None:
                metrics.MISSING_SIGNALS.labels(name).inc()
                if name not in self._without_signals:
                    _log.warning("signals of a pool missing, its count stays", pool=name, replicas=before)
            scaler = self._scalers.setdefault(name, PoolScaler(self._settings, now_s))
            decision = scaler.decide(before, _bounds(pool), signals.get(name), now_s, expected.get(name))
            if decision.need is not None:
                self._needs.note(session, name, decision.need, unix_s)
            if name not in latest or decision.target != before:
                reason = decision.reason if decision.target != before else "first"
                inputs = decision.inputs(_bounds(pool), self._settings)
                latest[name] = decisions.record(session, name, before, decision.target, reason, inputs)
                _log.info("pool decided", pool=name, before=before, replicas=decision.target, reason=reason)
        self._without_signals = {name for name, found in signals.items() if found is None}
        return latest

    def _replace(self, name: str, before: bytes | None, wanted: bytes) -> bool:
        """Write an entry unless another process has changed it: one that lost its lock must not undo what the next
        leader decided.
        """

        def write(pipe: Pipeline) -> None:
            if is_same := pipe.hget(redis_keys.FLEET_WANTED, name) == before:
                pipe.multi()
                pipe.hset(redis_keys.FLEET_WANTED, name, wanted)
            written.append(is_same)

        written: list[bool] = []
        self._redis.transaction(write, redis_keys.FLEET_WANTED)
        return written[-1]


def _export(pools: Set[str], statuses: Sequence[ReplicaStatus]) -> None:
    found = Counter((each.pool if each.pool in pools else "", each.state) for each in statuses)
    for pool in {*pools, ""}:
        for state in get_args(ReplicaState):
            metrics.FLEET_REPLICAS.labels(pool, state).set(found[pool, state])


def _entry(encoded: bytes | None) -> WantedPool | None:
    return None if encoded is None else read_wanted(encoded)


def _start_s(entry: WantedPool | None) -> int:
    return 0 if entry is None else entry.start_s


def _count(
    latest: PoolDecision | None, entry: WantedPool | None, pool: PoolRow, statuses: Sequence[ReplicaStatus]
) -> int:
    """How many replicas the pool should have so far. Before its first decision, those that it has."""
    if latest is not None:
        return latest.replicas
    if entry is not None:
        return min(sum(revision.replicas for revision in entry.revisions), pool.replicas_max)
    return min(sum(each.pool == pool.name and each.state == "ready" for each in statuses), pool.replicas_max)


def _bounds(pool: PoolRow) -> PoolBounds:
    return PoolBounds(
        least=pool.replicas_min, most=pool.replicas_max, ttft_ms=pool.ttft_target_ms, itl_ms=pool.itl_target_ms
    )


def _next(
    session: Session,
    pool: PoolRow,
    before: WantedPool | None,
    ready: Mapping[tuple[str, str], int],
    decision: PoolDecision,
    start_s: float | None,
) -> WantedPool:
    assert pool.revision is not None, "pools without a revision are not read"
    rows = select(PoolRevisionRow).where(PoolRevisionRow.pool == pool.name)
    if before is not None:
        used = {pool.revision, *(each.number for each in before.revisions)}
        rows = rows.where(col(PoolRevisionRow.number).in_(used))
    revisions = {row.number: row for row in session.exec(rows).all()}
    serving = {number: ready[pool.name, row.digest] for number, row in revisions.items()}
    wanted = serving if before is None else {each.number: each.replicas for each in before.revisions}
    # A revision that a restored Postgres no longer has cannot be wanted again.
    known = {number: count for number, count in wanted.items() if number in revisions}
    counts = next_counts(decision.replicas, pool.revision, known, serving)
    grew_ms = 0 if before is None else before.grew_ms
    if decision.replicas > decision.replicas_before:
        grew_ms = clock.to_ms(decision.created_at)
    return WantedPool(
        pool=pool.name,
        revisions=tuple(
            WantedRevision(
                number=number,
                replicas=count,
                environment=environment_of(pool, revisions[number]),
            )
            for number, count in counts.items()
        ),
        base_model=pool.base_model,
        rank_max=pool.rank_max,
        replicas_max=pool.replicas_max,
        start_s=math.ceil(start_s) if start_s is not None else _start_s(before),
        grew_ms=grew_ms,
    )
