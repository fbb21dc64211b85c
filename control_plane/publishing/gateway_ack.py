"""Waits until every live gateway has applied a committed change. This module does not know the content of the change.

Fails open: when Redis or a gateway does not answer in time, the change stands and the response says that it is not
acknowledged. A gateway process without a heartbeat serves nothing (``data_plane.gateway.state.heartbeat``), and it
serves again only after it has loaded everything published by then. Gateways without a heartbeat are therefore not
awaited; without any gateway every change is acknowledged. A Redis that lost data also lost heartbeats of gateways that
still serve. Until those leases have expired, nothing is acknowledged.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import anyio
import anyio.to_thread
import msgspec
import structlog
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col, select

from control_plane import metrics
from control_plane.publishing.models import OutboxChange, PublishedSnapshot
from control_plane.publishing.snapshot_store import Position
from core import redis_keys
from core.contracts.snapshots import GatewayStatus
from core.db import unit_of_work

_POLL_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Acknowledgement:
    """Whether every live gateway has a change, how many gateways have it, and how long the wait took."""

    acknowledged: bool
    gateways: int
    waited_ms: int


class AckWaiter:
    """Scans again and again, for the last time after ``wait_ms``. The timeouts of Redis and Postgres bound one scan."""

    def __init__(self, engine: Engine, redis: Redis, *, wait_ms: int) -> None:
        self._engine = engine
        self._redis = redis
        self._wait_s = wait_ms / 1000

    async def wait(self, change_ids: Sequence[int]) -> Acknowledgement:
        """Wait for these outbox changes, whose transaction has committed. An unavailable Redis or Postgres never
        raises.
        """
        began = time.monotonic()
        scan = AckScan(self._engine, self._redis, change_ids)
        while True:
            acknowledged = await anyio.to_thread.run_sync(scan.run_once)
            waited_s = time.monotonic() - began
            if acknowledged or waited_s >= self._wait_s:
                break
            await anyio.sleep(min(_POLL_S, self._wait_s - waited_s))
        metrics.ACKNOWLEDGE_SECONDS.labels("yes" if acknowledged else "no").observe(waited_s)
        if not acknowledged:
            structlog.get_logger().warning("change not acknowledged by every gateway", awaited=scan.awaited)
        return Acknowledgement(acknowledged=acknowledged, gateways=scan.having, waited_ms=round(waited_s * 1000))


class AckScan:
    """The scans of one wait. ``having`` and ``awaited`` describe the last scan. The first position that contains the
    changes is the goal; changes that others publish later do not move it.
    """

    def __init__(self, engine: Engine, redis: Redis, change_ids: Sequence[int]) -> None:
        self._engine = engine
        self._redis = redis
        self._change_ids = change_ids
        self._enough: dict[str, int] = {}  # by epoch, the first generation that contains the changes
        self.having = 0
        self.awaited: list[str] = []

    def run_once(self) -> bool:
        """Whether every live gateway has the changes now. Unavailable dependencies count as no."""
        try:
            position = self._published()
            if position is None:
                return False
            statuses = self._statuses(position)
        except (RedisError, OSError, SQLAlchemyError, msgspec.MsgspecError) as error:
            structlog.get_logger().warning("gateway positions unavailable", error=repr(error))
            return False
        if statuses is None:
            return False
        self.awaited = [one.id for one in statuses if one.generation < self._enough.get(one.epoch, one.generation + 1)]
        self.having = len(statuses) - len(self.awaited)
        return not self.awaited

    def _published(self) -> Position | None:
        """The position of Redis, or None until the changes are in it. Every epoch that begins later was read from
        Postgres and therefore contains them.
        """
        with unit_of_work(self._engine) as session:
            waiting = select(OutboxChange.id).where(col(OutboxChange.id).in_(self._change_ids)).limit(1)
            # One statement, because the relay removes the changes and moves the position in one transaction.
            row = session.exec(select(PublishedSnapshot, waiting.scalar_subquery())).first()
        if row is None:
            return None
        position, still_waiting = row
        if still_waiting is not None and not self._enough:
            return None
        self._enough.setdefault(position.epoch, 1 if self._enough else position.generation)
        return Position(epoch=position.epoch, generation=position.generation)

    def _statuses(self, published: Position) -> list[GatewayStatus] | None:
        """The status of every gateway. None when Redis has lost data, even if the relay has not noticed yet."""
        names = [name.decode() for name in cast("list[bytes]", self._redis.zrange(redis_keys.GATEWAYS, 0, -1))]
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            pipe.exists(redis_keys.SNAPSHOT_UNSURE)
            for name in names:
                pipe.get(redis_keys.gateway(name))
            (epoch, generation), heartbeats_uncertain, *found = pipe.execute()
        if (
            heartbeats_uncertain
            or epoch is None
            or epoch.decode() != published.epoch
            or int(generation) < published.generation
        ):
            return None
        return [msgspec.json.decode(value, type=GatewayStatus) for value in found if value is not None]
