"""Writes what placers keep running: one round looks at every pool, its revision in force and its live replicas.

Only one process decides at a time. What it wrote last is where a rollout goes on, so that a new leader repeats nothing.
Without it, and without Postgres, what was wanted stays wanted. When Redis has lost that, all that serves counts as
wanted, once heartbeats have had the time to come back.
"""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, cast

import msgspec
import structlog
from redis import Redis
from redis.client import Pipeline
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from control_plane.fleet import service as fleet
from control_plane.pools.models import PoolRevisionRow, PoolRow
from control_plane.pools.rollout import next_counts
from control_plane.pools.service import environment_of
from core import db, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision, read_wanted

_log: Final = structlog.get_logger()
_SETTLE_S: Final = 5.0
_LOCK: Final = 7_301_945_137  # any fixed number; one process decides at a time


class FleetDecisions:
    """The rounds of one process."""

    def __init__(self, engine: Engine, redis: Redis, *, settle_s: float = _SETTLE_S) -> None:
        self._engine = engine
        self._redis = redis
        self._settle_s = settle_s
        self._missing_since_s: dict[str, float] = {}  # pools without an entry in Redis

    def run_once(self) -> bool:
        """Decide for each pool, and write what changed. Always returns False: replicas take seconds."""
        with db.exclusively(self._engine, _LOCK) as leads:
            if leads:
                self._decide()
        return False

    def _decide(self) -> None:
        with db.unit_of_work(self._engine) as session:
            pools = session.exec(select(PoolRow).where(col(PoolRow.revision).is_not(None))).all()
            if not pools:
                return
            before = cast("dict[bytes, bytes]", self._redis.hgetall(redis_keys.FLEET_WANTED))
            ready = Counter(
                (each.pool, each.revision) for each in fleet.published_statuses(self._redis) if each.state == "ready"
            )
            found = {pool.name: _next(session, pool, before.get(pool.name.encode()), ready) for pool in pools}
        now_s = time.monotonic()
        self._missing_since_s = {
            name: self._missing_since_s.get(name, now_s) for name in found if name.encode() not in before
        }
        for name, wanted in found.items():
            if now_s - self._missing_since_s.get(name, float("-inf")) < self._settle_s:
                continue
            encoded = msgspec.json.encode(wanted)
            if before.get(name.encode()) != encoded and self._replace(name, before.get(name.encode()), encoded):
                counts = {revision.number: revision.replicas for revision in wanted.revisions}
                _log.info("pool wanted", pool=name, replicas=counts)

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


def _next(session: Session, pool: PoolRow, entry: bytes | None, ready: Mapping[tuple[str, str], int]) -> WantedPool:
    assert pool.revision is not None, "pools without a revision are not read"
    before = None if entry is None else read_wanted(entry)
    rows = select(PoolRevisionRow).where(PoolRevisionRow.pool == pool.name)
    if before is not None:
        used = {pool.revision, *(each.number for each in before.revisions)}
        rows = rows.where(col(PoolRevisionRow.number).in_(used))
    revisions = {row.number: row for row in session.exec(rows).all()}
    serving = {number: ready[pool.name, row.digest] for number, row in revisions.items()}
    wanted = serving if before is None else {each.number: each.replicas for each in before.revisions}
    # A revision that a restored Postgres no longer has cannot be wanted again.
    known = {number: count for number, count in wanted.items() if number in revisions}
    counts = next_counts(pool.replicas_min, pool.revision, known, serving)
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
    )
