"""Keeps the agent's side tasks going: each repeats a step, and one that fails is logged and repeated after a pause.

None of them can end another or the heartbeat; what a step does is its own file's business.
"""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import structlog
from redis.exceptions import RedisError

from core.errors import AppError
from data_plane.engine.agent import metrics

_log = structlog.get_logger()
_BACKOFF_FIRST_S = 0.25
_CANCEL_AGAIN_S = 0.5
_EXPECTED = (AppError, RedisError, OSError, aiohttp.ClientError)  # said in a line; others are defects, with traceback

Step = Callable[[], Awaitable[None]]


class BackgroundTasks:
    """Repeats steps until ``close``. After a failed step the pause doubles up to ``backoff_max_s``."""

    def __init__(self, *, backoff_max_s: float) -> None:
        self._backoff_max_s = backoff_max_s
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, step: Step, *, every_s: float) -> None:
        """Repeat ``step``, ``every_s`` after its last end. A step that waits for work by itself takes 0."""
        task = asyncio.create_task(self._repeat(name, step, every_s), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel until all have ended: a cancellation that meets a timeout inside a client can be lost on it."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_S)

    async def _repeat(self, name: str, step: Step, every_s: float) -> None:
        failures = 0
        while True:
            try:
                await step()
                failures = 0
                pause_s = every_s
            except Exception as error:  # noqa: BLE001 - a side task outlives whatever one step meets
                failures += 1
                metrics.TASK_FAILURES.labels(name).inc()
                pause_s = min(self._backoff_max_s, _BACKOFF_FIRST_S * 2 ** min(failures - 1, 16))
                expected = isinstance(error, _EXPECTED)
                _log.warning(
                    "side task failed",
                    task=name,
                    failures=failures,
                    error=repr(error),
                    exc_info=None if expected else error,
                )
            await asyncio.sleep(pause_s)
