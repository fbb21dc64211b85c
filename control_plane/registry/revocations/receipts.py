"""Collects replicas' receipts for revocations from Redis into the rows, until every live replica has unloaded the
adapter.

Fails closed: an unreadable receipt counts as missing. A replica whose status expired has lost its engine and the
engine's memory. Its disk is cleaned when it comes back, because a revocation stays published for long after.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec
import structlog
from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session, col

from control_plane import metrics
from control_plane.fleet import service as fleet
from control_plane.publishing.outbox import publish_change
from control_plane.registry.models import Adapter, AdapterRevocation
from control_plane.registry.revocations import service as revocations
from control_plane.settings import WorkerSettings
from core import redis_keys
from core.contracts.replicas import ReplicaStatus
from core.contracts.revocations import RevocationReceipt
from core.db import database_now, unit_of_work

_BATCH_MAX: Final = 200


def awaited_replicas(base_model: str, receipts: Mapping[str, Any], alive: Sequence[ReplicaStatus]) -> list[str]:
    """The live replicas of the base model that have not confirmed the removal since their engine's start."""
    return [
        status.id
        for status in alive
        if status.base_model == base_model and not _is_clear(status, receipts.get(status.id))
    ]


def merge_receipts(
    known: Mapping[str, Any], answered: Mapping[bytes, bytes], *, revocation_id: str, engine_names: Collection[str]
) -> dict[str, Any]:
    """The newest receipt of each replica, as JSON. Names of other adapters are removed, because the tenant sees
    receipts. An unreadable receipt, or one of another revocation or replica, is ignored.
    """
    receipts = dict(known)
    shown = {*engine_names, *(name.partition("@")[2] for name in engine_names)}
    for replica, encoded in answered.items():
        try:
            receipt = msgspec.json.decode(encoded, type=RevocationReceipt)
        except msgspec.MsgspecError as error:
            structlog.get_logger().warning("receipt unreadable", revocation_id=revocation_id, error=str(error))
            continue
        before = receipts.get(receipt.replica_id)
        if (receipt.revocation_id, receipt.replica_id) != (revocation_id, replica.decode(errors="replace")) or (
            before is not None and before["at_ms"] >= receipt.at_ms
        ):
            continue
        receipts[receipt.replica_id] = msgspec.to_builtins(receipt) | {
            place: [name for name in getattr(receipt, place) if name in shown]
            for place in ("in_slots", "in_memory", "on_disk")
        }
    return receipts


class ReceiptCollector:
    """Reads receipts and updates the rows. Any number may run: they write the same values."""

    def __init__(self, engine: Engine, redis: Redis, settings: WorkerSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings
        self._clear_since: dict[str, datetime] = {}
        self._after = {"awaited": "", "unloaded": ""}

    def run_once(self) -> bool | float:
        """Scan the next batch of revocations that replicas have not confirmed. Returns whether the round has more, or,
        while any is awaited, the seconds until the next scan: replicas confirm in Redis.
        """
        found, more = self._scan("awaited", col(AdapterRevocation.unloaded_at).is_(None))
        return self._settings.revocation_poll_ms / 1000 if found and not more else more

    def recheck_unloaded(self) -> bool:
        """Scan the next batch of revocations that every live replica has confirmed: other replicas may come back, and
        the publication ends after its time. Returns whether the round has more.
        """
        return self._scan("unloaded", col(AdapterRevocation.unloaded_at).is_not(None))[1]

    def _scan(self, which: str, condition: ColumnElement[bool]) -> tuple[int, bool]:
        """The number of revocations in the batch, and whether the round has more."""
        rows = revocations.open_revocations().where(condition, col(AdapterRevocation.id) > self._after[which])
        with unit_of_work(self._engine) as session:
            batch = session.exec(rows.order_by(col(AdapterRevocation.id)).limit(_BATCH_MAX)).all()
        more = len(batch) == _BATCH_MAX
        self._after[which] = batch[-1].id if more else ""
        if not batch:
            return 0, False
        alive = fleet.statuses(self._redis)
        for row, answered in zip(batch, self._answers([row.id for row in batch]), strict=True):
            with unit_of_work(self._engine) as session:
                self._record(session, row.id, answered, alive)
        return len(batch), more

    def _answers(self, revocation_ids: Sequence[str]) -> list[dict[bytes, bytes]]:
        """The receipts of each revocation. They expire some time after the last read."""
        with self._redis.pipeline(transaction=False) as pipe:
            for revocation_id in revocation_ids:
                pipe.hgetall(redis_keys.revocation_receipts(revocation_id))
                pipe.expire(redis_keys.revocation_receipts(revocation_id), 2 * self._settings.revocation_keep_s)
            return cast("list[dict[bytes, bytes]]", pipe.execute()[::2])

    def _record(
        self, session: Session, revocation_id: str, answered: Mapping[bytes, bytes], alive: Sequence[ReplicaStatus]
    ) -> None:
        row = session.get(AdapterRevocation, revocation_id, with_for_update=True)
        if row is None or row.lifted_at or row.forgotten_at:
            self._clear_since.pop(revocation_id, None)
            return
        receipts = merge_receipts(row.receipts, answered, revocation_id=row.id, engine_names=row.engine_names)
        if receipts != row.receipts:
            row.receipts = receipts
        now = database_now(session)
        base_model = session.get_one(Adapter, row.adapter_id).base_model
        if row.unloaded_at is None and self._clear_for_long(row, awaited_replicas(base_model, receipts, alive), now):
            row.unloaded_at = now
            metrics.REVOCATION_SECONDS.labels(row.reason).observe((now - row.created_at).total_seconds())
        if row.removed_at and row.created_at < now - timedelta(seconds=self._settings.revocation_keep_s):
            row.forgotten_at = now
            publish_change(session, "revocations", row.id)
        session.add(row)

    def _clear_for_long(self, row: AdapterRevocation, awaited_now: Sequence[str], now: datetime) -> bool:
        """Whether no replica has been awaited for a while: just after Redis lost its data, no replica seems alive."""
        if awaited_now:
            self._clear_since.pop(row.id, None)
            return False
        since = self._clear_since.setdefault(row.id, now)
        if now - since < timedelta(seconds=self._settings.revocation_settle_s):
            return False
        del self._clear_since[row.id]
        return True


def _is_clear(status: ReplicaStatus, receipt: Mapping[str, Any] | None) -> bool:
    return receipt is not None and (receipt["boot_id"], receipt["state"]) == (status.boot_id, "removed")
