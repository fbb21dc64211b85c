"""Reports to billing what the engine counted for requests that have ended, from the middleware through Redis.

Counts are totals, so a report that is repeated changes nothing. Each is sent a second time within a minute, in case
Redis lost it. Fails open: a replica serves without these reports; reconciliation then shows a difference.
"""

import time
from typing import Any

import msgspec
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.engine_usage import EngineUsageReport
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.settings import ReplicaSettings

_ROWS_MAX = 1_000  # of one report


class EngineUsageReports:
    """The reports of one boot."""

    def __init__(self, settings: ReplicaSettings, redis: Redis, control: ControlClient, *, boot_id: str) -> None:
        self._settings = settings
        self._redis = redis
        self._control = control
        self._boot_id = boot_id
        self._sent = 0  # the version up to which everything was sent once
        self._repeated = 0  # and twice
        self._repeat_at = time.monotonic() + settings.engine_usage_repeat_s

    async def run_once(self, *, at_once: bool = False) -> None:
        """Send what is new since the last report. Raises RedisError or what ``ControlClient`` raises; then nothing
        counts as sent.
        """
        repeats = time.monotonic() >= self._repeat_at
        ended = await self._control.ended(self._repeated if repeats else self._sent, at_once=at_once)
        reports: list[dict[str, Any]] = [
            *({"hours": ended.hours[at : at + _ROWS_MAX]} for at in range(0, len(ended.hours), _ROWS_MAX)),
            *({"requests": ended.requests[at : at + _ROWS_MAX]} for at in range(0, len(ended.requests), _ROWS_MAX)),
        ]
        for rows in reports:
            fields: dict[Any, Any] = {"report": msgspec.json.encode(self._report(rows))}
            await self._redis.xadd(
                redis_keys.ENGINE_USAGE, fields, maxlen=self._settings.engine_usage_stream_max, approximate=True
            )
        if repeats:
            self._repeated = self._sent
            self._repeat_at = time.monotonic() + self._settings.engine_usage_repeat_s
        self._sent = ended.version

    def _report(self, rows: dict[str, Any]) -> EngineUsageReport:
        return EngineUsageReport(
            replica_id=self._settings.replica_id, boot_id=self._boot_id, base_model=self._settings.base_model, **rows
        )
