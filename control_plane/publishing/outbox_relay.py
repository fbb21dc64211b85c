"""Publishes committed changes from the outbox to Redis, and rebuilds the whole snapshot when Redis has lost data.

Postgres is the source of truth and is read again for each change, so publishing twice, late or out of order gives the
same snapshot. No transaction contains a call to Redis. While Redis is unavailable, changes wait in the outbox.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, cast

import structlog
from redis import Redis
from sqlalchemy import Engine, delete
from sqlmodel import Session, col, select

from control_plane import metrics
from control_plane.publishing import snapshot_store
from control_plane.publishing.models import OutboxChange, PublishedSnapshot
from control_plane.publishing.projection import UNPUBLISHED, Projections, Published
from control_plane.publishing.snapshot_store import KINDS, Change, Position, PublishConflict, Stored
from core import clock
from core.contracts.snapshots import SnapshotKind
from core.db import database_now, exclusively, unit_of_work
from core.errors import Unavailable
from core.snapshot_signing import SetHash, SnapshotSigner, SnapshotVerifier

_ADVISORY_LOCK: Final = 7_301_945_119  # any fixed number except the migrations'; one relay publishes at a time
_STAGE_FIELDS: Final = 1000
_REBUILD_ATTEMPTS: Final = 5


class OutboxRelay:
    """Publishes to gateways. Any number may run: one at a time publishes, and WATCH keeps a slow one from
    overwriting.
    """

    def __init__(
        self,
        engine: Engine,
        redis: Redis,
        projections: Projections,
        signer: SnapshotSigner,
        *,
        batch_max: int = 500,
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._projections = projections
        self._signer = signer
        self._own = SnapshotVerifier(signer.public_key)
        self._batch_max = batch_max
        self._left_at: Position | None = None  # as the last round found or left it

    def run_once(self) -> bool:
        """Publish waiting changes up to the batch size. Returns whether more may be waiting."""
        with exclusively(self._engine, _ADVISORY_LOCK) as exclusive:
            if not exclusive:
                return False
            try:
                return self._publish_waiting()
            except PublishConflict:
                return True

    def check_redis(self) -> bool:
        """Publish if Redis has not what the last round left there: it lost data, or another process published. Returns
        what ``run_once`` returns.
        """
        unchanged = self._left_at in (None, snapshot_store.read_position(self._redis))
        return not unchanged and self.run_once()

    def rebuild(self, reason: str, *, wait_s: float = 30) -> Position:
        """Replace the snapshot in Redis with the state of Postgres, under a new epoch, in one step for gateways. Raises
        Unavailable when other processes keep publishing for ``wait_s``.
        """
        deadline = time.monotonic() + wait_s
        while True:
            with exclusively(self._engine, _ADVISORY_LOCK) as exclusive:
                if exclusive:
                    return self._rebuild(reason)
            if time.monotonic() > deadline:
                raise Unavailable(f"Another process has been publishing for {wait_s:g} s. Try again.")
            time.sleep(0.05)

    def _publish_waiting(self) -> bool:
        with snapshot_store.watched(self._redis) as pipe:
            stored = snapshot_store.read_stored(pipe, self._own)
            with unit_of_work(self._engine) as session:
                now_ms = _unix_ms(database_now(session))
                last = session.get(PublishedSnapshot, 1)
                order = col(OutboxChange.bulk), col(OutboxChange.id)
                rows = session.exec(select(OutboxChange).order_by(*order).limit(self._batch_max)).all()
                changes = [] if _has_lost(stored, last) else self._read(session, rows)
            if stored is not None and not _has_lost(stored, last):
                self._left_at = stored.position
                if not changes:
                    return False
                new = snapshot_store.append(pipe, stored, changes, self._signer, now_ms)
                self._left_at = new
                self._record_published(new, rows)
                _count(changes, rows)
                return len(rows) == self._batch_max
        self._rebuild("first" if last is None else "redis_lost_data")
        return True

    def _read(self, session: Session, rows: Sequence[OutboxChange]) -> list[Change]:
        """Each field that the rows name, once, with its current value."""
        named = dict.fromkeys((cast("SnapshotKind", row.kind), row.field) for row in rows)
        found = {
            kind: self._projections[kind].some(session, [field for of, field in named if of == kind])
            for kind in {kind for kind, _ in named}
        }
        return [Change(kind=kind, field=field, published=found[kind].get(field, UNPUBLISHED)) for kind, field in named]

    def _rebuild(self, reason: str) -> Position:
        for _ in range(_REBUILD_ATTEMPTS):
            epoch = secrets.token_hex(8)
            try:
                with snapshot_store.watched(self._redis) as pipe:
                    stored = snapshot_store.read_stored(pipe, self._own)
                    with unit_of_work(self._engine) as session:
                        now_ms = _unix_ms(database_now(session))
                        last = session.get(PublishedSnapshot, 1)
                    staged = {kind: found for kind in KINDS if (found := self._stage(kind, epoch)) is not None}
                    new = snapshot_store.replace(
                        pipe, epoch, staged, self._signer, now_ms if stored is None else stored.next_ms(now_ms),
                        heartbeats_uncertain=last is not None and _has_lost(stored, last),
                    )  # fmt: skip
            except PublishConflict:
                continue
            self._record_published(new, [])
            metrics.REBUILDS.labels(reason).inc()
            structlog.get_logger().info("snapshot rebuilt", epoch=epoch, reason=reason)
            return new
        raise Unavailable("Another process keeps publishing while the snapshot is rebuilt. Try again.")

    def _stage(self, kind: SnapshotKind, epoch: str) -> SetHash | None:
        """Read one kind completely, then write it to its staging key. Returns the hash of its entries, or None without
        any.
        """
        with unit_of_work(self._engine) as session:
            fields = list(self._projections[kind].every(session))
        found = SetHash()
        for part in _parts(fields):
            snapshot_store.stage(self._redis, kind, epoch, part, found)
        return found if fields else None

    def _record_published(self, at: Position, rows: Sequence[OutboxChange]) -> None:
        """Store the position of Redis and delete the published changes. A crash before this only publishes them
        again.
        """
        with unit_of_work(self._engine) as session:
            session.merge(PublishedSnapshot(id=1, epoch=at.epoch, generation=at.generation))
            session.execute(delete(OutboxChange).where(col(OutboxChange.id).in_([row.id for row in rows])))


def _has_lost(stored: Stored | None, last: PublishedSnapshot | None) -> bool:
    """Whether Redis has less than it once acknowledged: nothing of ours, another epoch, or an older generation."""
    if stored is None or last is None:
        return True
    return stored.position.epoch != last.epoch or stored.position.generation < last.generation


def _unix_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


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
