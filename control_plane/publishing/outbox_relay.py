"""Carries committed changes from the outbox to Redis, and rebuilds the whole snapshot when Redis has lost any of it.

Postgres is the truth and is read anew for each change, so publishing twice, late or out of order ends in
the same snapshot. No Redis call is made inside a transaction; while Redis is away, changes wait.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Final, cast

import structlog
from redis import Redis
from sqlalchemy import Engine, delete, text
from sqlmodel import Session, col, select

from control_plane import metrics
from control_plane.publishing import snapshot_store
from control_plane.publishing.models import OutboxChange, PublishedSnapshot
from control_plane.publishing.projection import Projections, Published
from control_plane.publishing.snapshot_store import KINDS, Change, Position, PublishConflict
from core import clock
from core.contracts.snapshots import SnapshotKind
from core.db import unit_of_work
from core.errors import Unavailable

_ADVISORY_LOCK: Final = 7_301_945_119  # any fixed number but the migrations': one relay publishes at a time
_STAGE_FIELDS: Final = 1000
_REBUILD_ATTEMPTS: Final = 5


class OutboxRelay:
    """Publishes for gateways. Any number may run: one at a time works, and a stale one cannot overwrite (WATCH)."""

    def __init__(self, engine: Engine, redis: Redis, projections: Projections, *, batch_max: int = 500) -> None:
        self._engine = engine
        self._redis = redis
        self._projections = projections
        self._batch_max = batch_max

    def run_once(self) -> bool:
        """Publish what waits, up to the batch size; whether there may be more to do at once."""
        with self._exclusive() as alone:
            if not alone:
                return False
            try:
                return self._publish_waiting()
            except PublishConflict:
                return True

    def rebuild(self, reason: str, *, wait_s: float = 30) -> Position:
        """Replace everything in Redis by what Postgres holds now, under a new epoch, in one step for gateways."""
        deadline = time.monotonic() + wait_s
        while True:
            with self._exclusive() as alone:
                if alone:
                    return self._rebuild(reason)
            if time.monotonic() > deadline:
                raise Unavailable(f"Another process has been publishing for {wait_s:g} s; try again.")
            time.sleep(0.05)

    def _publish_waiting(self) -> bool:
        with snapshot_store.watched(self._redis) as pipe:
            now = snapshot_store.position(pipe)
            with unit_of_work(self._engine) as session:
                last = session.get(PublishedSnapshot, 1)
                rows = session.exec(select(OutboxChange).order_by(col(OutboxChange.id)).limit(self._batch_max)).all()
                changes = [] if _has_lost(now, last) else self._read(session, rows)
            if now is not None and not _has_lost(now, last):
                if not changes:
                    return False
                self._record_published(snapshot_store.append(pipe, now, changes), rows)
                _count(changes, rows)
                return len(rows) == self._batch_max
        self._rebuild("first" if last is None else "redis_lost_data")
        return True

    def _read(self, session: Session, rows: Sequence[OutboxChange]) -> list[Change]:
        """Each field named by the rows once, with its value now."""
        named = dict.fromkeys((cast("SnapshotKind", row.kind), row.field) for row in rows)
        return [
            Change(kind=kind, field=field, published=self._projections[kind].one(session, field))
            for kind, field in named
        ]

    def _rebuild(self, reason: str) -> Position:
        for _ in range(_REBUILD_ATTEMPTS):
            epoch = secrets.token_hex(8)
            try:
                with snapshot_store.watched(self._redis) as pipe:
                    now = snapshot_store.position(pipe)
                    with unit_of_work(self._engine) as session:
                        last = session.get(PublishedSnapshot, 1)
                    staged = [kind for kind in KINDS if self._stage(kind, epoch)]
                    heartbeats_uncertain = last is not None and _has_lost(now, last)
                    new = snapshot_store.replace(pipe, epoch, staged, heartbeats_uncertain=heartbeats_uncertain)
            except PublishConflict:
                continue
            self._record_published(new, [])
            metrics.REBUILDS.labels(reason).inc()
            structlog.get_logger().info("snapshot rebuilt", epoch=epoch, reason=reason)
            return new
        raise Unavailable("Somebody else keeps publishing while the snapshot is rebuilt; try again.")

    def _stage(self, kind: SnapshotKind, epoch: str) -> bool:
        """Read one kind whole, then write it beside the live one; whether there was anything."""
        with unit_of_work(self._engine) as session:
            fields = list(self._projections[kind].every(session))
        for part in _parts(fields):
            snapshot_store.stage(self._redis, kind, epoch, part)
        return bool(fields)

    def _record_published(self, at: Position, rows: Sequence[OutboxChange]) -> None:
        """Remember what Redis has, and drop what has been published. Dying before this only publishes it again."""
        with unit_of_work(self._engine) as session:
            session.merge(PublishedSnapshot(id=1, epoch=at.epoch, generation=at.generation))
            session.execute(delete(OutboxChange).where(col(OutboxChange.id).in_([row.id for row in rows])))

    @contextmanager
    def _exclusive(self) -> Iterator[bool]:
        """Whether this is the only relay at work, for as long as the block lasts. The lock is the connection's, so that
        no transaction is open meanwhile, and Postgres frees it when the process dies.
        """
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            alone = connection.execute(
                text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _ADVISORY_LOCK}
            ).scalar_one()
            try:
                yield bool(alone)
            finally:
                if alone:
                    connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _ADVISORY_LOCK})


def _has_lost(now: Position | None, last: PublishedSnapshot | None) -> bool:
    """Whether Redis has less than it once acknowledged: nothing at all, another's epoch, or an older generation."""
    return now is None or last is None or now.epoch != last.epoch or now.generation < last.generation


def _parts(fields: list[tuple[str, Published]]) -> Iterator[list[tuple[str, Published]]]:
    remaining = iter(fields)
    while part := list(islice(remaining, _STAGE_FIELDS)):
        yield part


def _count(changes: Sequence[Change], rows: Sequence[OutboxChange]) -> None:
    now: datetime = clock.now()
    for change in changes:
        metrics.PUBLISHED.labels(change.kind).inc()
    for row in rows:
        metrics.PUBLISH_LAG.observe(max(0.0, (now - row.created_at).total_seconds()))
