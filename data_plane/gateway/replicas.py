"""Which replicas are alive, from their heartbeats in Redis, and which adapters lie where on them. Whether one suits a
request is placement's question.

A replica is dropped when its status expires in Redis or its heartbeat stands still, by this process's own clock. Where
adapters lie is advice: when it cannot be read, requests are placed without it.
"""

import asyncio
import time
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import keys
from core.contracts import ReplicaStatus, Residency
from data_plane.gateway.placement import NOTHING_RESIDENT, Candidate, Resident

_log = structlog.get_logger()
_decoder = msgspec.json.Decoder(ReplicaStatus)
_residency = msgspec.json.Decoder(Residency)
_Seen = tuple[str, int]  # boot id and residency version


class Replicas:
    """The live replicas, refreshed by ``follow``."""

    def __init__(self, redis: Redis, *, poll_ms: int, stale_s: float) -> None:
        self._redis = redis
        self._poll_s = poll_ms / 1000
        self._stale_s = stale_s
        self._statuses: dict[str, ReplicaStatus] = {}
        self._beaten_at: dict[str, tuple[int, float]] = {}  # heartbeat, and when this process first saw it
        self._held: dict[str, int] = {}
        self._resident: dict[str, tuple[_Seen, Resident]] = {}
        self.reachable = False

    def alive(self) -> list[Candidate]:
        """Replicas whose heartbeat is fresh, with the pages that are free on them."""
        oldest = time.monotonic() - self._stale_s
        return [
            Candidate(
                status,
                min(status.pages_free, status.pages_total - self._held.get(status.id, 0)),
                self._resident_on(status),
            )
            for status in self._statuses.values()
            if self._beaten_at[status.id][1] >= oldest
        ]

    def note_held(self, replica_id: str, pages: int) -> None:
        """Remember how many pages reservations hold on a replica, as the last reservation said."""
        self._held[replica_id] = pages

    async def follow(self) -> None:
        """Read the heartbeats again and again, for ever."""
        while True:
            try:
                await self.refresh()
                self.reachable = True
            except (RedisError, OSError) as error:
                if self.reachable:
                    _log.warning("replicas cannot be read; the last list ages", error=repr(error))
                self.reachable = False
            await asyncio.sleep(self._poll_s)

    async def refresh(self) -> None:
        """Read every heartbeat once, and the residency of those where it has changed. Raises redis.RedisError."""
        ids = [_text(name) for name in await self._redis.zrange(keys.REPLICAS, 0, -1)]
        values = await self._redis.mget([keys.replica(name) for name in ids]) if ids else []
        statuses: dict[str, ReplicaStatus] = {}
        for name, value in zip(ids, values, strict=True):
            if value is None:
                continue  # expired: its agent stopped
            try:
                status = _decoder.decode(value)
            except msgspec.MsgspecError as error:
                _log.error("a replica's status cannot be read", replica=name, error=str(error))
                continue
            statuses[status.id] = status
            if self._beaten_at.get(status.id, (0, 0.0))[0] != status.heartbeat_ms:
                self._beaten_at[status.id] = (status.heartbeat_ms, time.monotonic())
        self._statuses = statuses
        known: dict[str, Any]
        for known in (self._beaten_at, self._held, self._resident):
            for gone in known.keys() - statuses.keys():
                del known[gone]
        await self._refresh_residency()

    async def _refresh_residency(self) -> None:
        changed = [
            status
            for status in self._statuses.values()
            if status.residency_version and _seen(status) != self._resident.get(status.id, (None,))[0]
        ]
        if not changed:
            return
        values = await self._redis.mget([keys.replica_residency(status.id) for status in changed])
        for status, value in zip(changed, values, strict=True):
            if value is None:
                continue
            try:
                residency = _residency.decode(value)
            except msgspec.MsgspecError as error:
                _log.error("a replica's residency cannot be read", replica=status.id, error=str(error))
                continue
            # By its own version: one that is newer than the status is kept, an older one is read again.
            self._resident[status.id] = ((residency.boot_id, residency.version), Resident.of(residency))

    def _resident_on(self, status: ReplicaStatus) -> Resident:
        """What lies on a replica; nothing where all that is known is of an engine before this one."""
        seen, resident = self._resident.get(status.id, (("", 0), NOTHING_RESIDENT))
        return resident if seen[0] == status.boot_id else NOTHING_RESIDENT


def _seen(status: ReplicaStatus) -> _Seen:
    return status.boot_id, status.residency_version


def _text(name: object) -> str:
    """A member of a sorted set: always bytes from this client, which redis-py's types do not know."""
    assert isinstance(name, bytes)
    return name.decode()
