"""Detects stalled engines during non-streamed answers, from the token counters that the replicas' agents publish.

A hung engine keeps its socket open and may report itself healthy, but its token counters stop. Its KV page-time grows
on, because its requests hold their pages. Fails open: while the counters cannot be read, no engine counts as stalled.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.replicas import EngineCounters, ReplicaStatus

_log = structlog.get_logger()


class EngineLiveness:
    """When the counters of each watched engine last changed. An engine without counters in Redis never counts as
    stalled.
    """

    def __init__(self, redis: Redis, *, poll_s: float) -> None:
        self._redis = redis
        self.poll_s = poll_s
        self._watchers: Counter[str] = Counter()
        self._seen: dict[str, tuple[int | None, float]] = {}  # the tokens, and when their number last changed

    @contextlib.contextmanager
    def watch(self, replica: ReplicaStatus) -> Iterator[None]:
        """Watch this engine's counters while the context is open."""
        name = f"{replica.id}/{replica.boot_id}"
        self._watchers[name] += 1
        try:
            yield
        finally:
            self._watchers[name] -= 1
            if not self._watchers[name]:
                del self._watchers[name]
                self._seen.pop(name, None)

    def stalled_s(self, replica: ReplicaStatus) -> float:
        """How long a watched engine has counted no token; 0 while that is unknown."""
        tokens, changed_at = self._seen.get(f"{replica.id}/{replica.boot_id}", (None, 0.0))
        return 0.0 if tokens is None else time.monotonic() - changed_at

    async def run_forever(self) -> None:
        """Read the watched counters every ``poll_s``. Never returns."""
        while True:
            await asyncio.sleep(self.poll_s)
            try:
                await self.refresh()
            except (RedisError, OSError, msgspec.MsgspecError) as error:
                self._seen.clear()
                _log.warning("engine counters unreadable", error=repr(error))

    async def refresh(self) -> None:
        """Read the watched counters once. Raises redis.RedisError and msgspec.MsgspecError."""
        names = list(self._watchers)
        if not names:
            return
        values = cast("list[bytes | None]", await self._redis.hmget(redis_keys.ENGINE_COUNTERS, names))
        now = time.monotonic()
        for name, value in zip(names, values, strict=True):
            tokens = None if value is None else _tokens(value)
            if name in self._watchers and (name not in self._seen or self._seen[name][0] != tokens):
                self._seen[name] = (tokens, now)


def _tokens(stored: bytes) -> int:
    counters = msgspec.json.decode(stored, type=EngineCounters)
    return counters.prompt_tokens + counters.generation_tokens
