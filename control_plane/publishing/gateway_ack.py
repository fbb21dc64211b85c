"""Waits until every live gateway decides by a change that has been committed. What it changes is not known here.

Fails open: when Redis or a gateway does not answer in time the change stands all the same, and the answer says that it
is not acknowledged. A gateway process without a heartbeat serves nothing (``data_plane.gateway.state.heartbeat``) and
serves again
only with all that was published by then, so nobody is awaited who has none: with no gateway at all, every change is
acknowledged. A Redis that has lost data has lost heartbeats too, of gateways that still serve by them; until those are
over, nothing is acknowledged.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

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


@dataclass(frozen=True, kw_only=True)
class Acknowledgement:
    """Whether every live gateway has a change, how many gateways have it, and how long that was waited for."""

    acknowledged: bool
    gateways: int
    waited_ms: int


class AckWaiter:
    """Looks every ``poll_ms``, the last time after ``wait_ms``; Redis and Postgres bound how long one look takes."""

    def __init__(self, engine: Engine, redis: Redis, *, wait_ms: int, poll_ms: int) -> None:
        self._engine = engine
        self._redis = redis
        self._wait_s = wait_ms / 1000
        self._poll_s = poll_ms / 1000

    async def wait(self, change_ids: Sequence[int]) -> Acknowledgement:
        """Wait for these changes of the outbox, whose transaction has committed. Never raises for what is away."""
        began = time.monotonic()
        scan = AckScan(self._engine, self._redis, change_ids)
        while True:
            acknowledged = await anyio.to_thread.run_sync(scan.run_once)
            waited_s = time.monotonic() - began
            if acknowledged or waited_s >= self._wait_s:
                break
            await anyio.sleep(min(self._poll_s, self._wait_s - waited_s))
        metrics.ACKNOWLEDGE_SECONDS.labels("yes" if acknowledged else "no").observe(waited_s)
        if not acknowledged:
            structlog.get_logger().warning("a change is not acknowledged by every gateway", awaited=scan.awaited)
        return Acknowledgement(acknowledged=acknowledged, gateways=scan.having, waited_ms=round(waited_s * 1000))


class AckScan:
    """One wait's looks. ``having`` and ``awaited`` are of the last. The position it sees first, once its changes are
    published, is the goal: what others publish after that does not move it.
    """

    def __init__(self, engine: Engine, redis: Redis, change_ids: Sequence[int]) -> None:
        self._engine = engine
        self._redis = redis
        self._change_ids = change_ids
        self._enough: dict[str, int] = {}  # by epoch, the generation that has the changes
        self.having = 0
        self.awaited: list[str] = []

    def run_once(self) -> bool:
        """Whether every live gateway has the changes now."""
        try:
            position = self._published()
            if position is None:
                return False
            statuses = self._statuses(position)
        except (RedisError, OSError, SQLAlchemyError, msgspec.MsgspecError) as error:
            structlog.get_logger().warning("cannot see what gateways have", error=repr(error))
            return False
        if statuses is None:
            return False
        self.awaited = [one.id for one in statuses if one.generation < self._enough.get(one.epoch, one.generation + 1)]
        self.having = len(statuses) - len(self.awaited)
        return not self.awaited

    def _published(self) -> Position | None:
        """What Redis has, once the changes are in it. Every epoch that begins after that was read from Postgres with
        them in it.
        """
        with unit_of_work(self._engine) as session:
            waiting = select(OutboxChange.id).where(col(OutboxChange.id).in_(self._change_ids)).limit(1)
            # One statement, because whoever publishes removes the changes and moves the position in one transaction.
            row = session.exec(select(PublishedSnapshot, waiting.scalar_subquery())).first()
        if row is None:
            return None
        position, still_waits = row
        if still_waits is not None and not self._enough:
            return None
        self._enough.setdefault(position.epoch, 1 if self._enough else position.generation)
        return Position(epoch=position.epoch, generation=position.generation)

    def _statuses(self, published: Position) -> list[GatewayStatus] | None:
        """Every gateway's; None from a Redis that has lost data, which nobody may have noticed yet."""
        names = [name.decode() for name in cast("list[bytes]", self._redis.zrange(redis_keys.GATEWAYS, 0, -1))]
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(redis_keys.SNAPSHOT_META, ["epoch", "generation"])
            pipe.exists(redis_keys.SNAPSHOT_UNSURE)
            for name in names:
                pipe.get(redis_keys.gateway(name))
            (epoch, generation), unsure, *found = pipe.execute()
        if unsure or epoch is None or epoch.decode() != published.epoch or int(generation) < published.generation:
            return None
        return [msgspec.json.decode(value, type=GatewayStatus) for value in found if value is not None]
