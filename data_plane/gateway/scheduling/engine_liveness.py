"""Signs of life of replicas on which whole answers are awaited: the counters of tokens that their agents publish.

A hung engine keeps its socket and may call itself healthy, but it counts no token any more. Fails open: while the
counters cannot be read, replicas are taken to be well.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.replicas import ReplicaStatus

_log = structlog.get_logger()


class ReplicaSigns:
    """When each watched engine was last seen to count. One that has no counters in Redis is never called silent."""

    def __init__(self, redis: Redis, *, poll_s: float) -> None:
        self._redis = redis
        self.poll_s = poll_s
        self._watchers: Counter[str] = Counter()
        self._seen: dict[str, tuple[bytes | None, float]] = {}  # counters, and when they last changed

    @contextlib.contextmanager
    def watch(self, replica: ReplicaStatus) -> Iterator[None]:
        """Follow this engine's counters for as long as somebody waits for an answer of it."""
        name = f"{replica.id}/{replica.boot_id}"
        self._watchers[name] += 1
        try:
            yield
        finally:
            self._watchers[name] -= 1
            if not self._watchers[name]:
                del self._watchers[name]
                self._seen.pop(name, None)

    def silent_s(self, replica: ReplicaStatus) -> float:
        """For how long a watched engine has not counted a token, as far as is known."""
        counters, changed_at = self._seen.get(f"{replica.id}/{replica.boot_id}", (None, 0.0))
        return 0.0 if counters is None else time.monotonic() - changed_at

    async def follow(self) -> None:
        """Read the watched counters again and again, for ever."""
        while True:
            await asyncio.sleep(self.poll_s)
            try:
                await self.refresh()
            except (RedisError, OSError) as error:
                self._seen.clear()
                _log.warning("engines' counters cannot be read", error=repr(error))

    async def refresh(self) -> None:
        """Read them once. Raises redis.RedisError."""
        names = list(self._watchers)
        if not names:
            return
        values = cast("list[bytes | None]", await self._redis.hmget(redis_keys.ENGINE_COUNTERS, names))
        now = time.monotonic()
        for name, value in zip(names, values, strict=True):
            if name in self._watchers and (name not in self._seen or self._seen[name][0] != value):
                self._seen[name] = (value, now)
