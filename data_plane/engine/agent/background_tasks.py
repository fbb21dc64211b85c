"""Runs the agent's background tasks: each repeats one function; a failure is logged and the function runs again after a
pause.

No task can end another task or the heartbeat. Each task's function is in its own module.
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
_EXPECTED = (
    AppError,
    RedisError,
    OSError,
    aiohttp.ClientError,
)  # logged in one line; other errors are defects and are logged with a traceback

RunOnce = Callable[[], Awaitable[None]]


class BackgroundTasks:
    """Repeats functions until ``close``. After each consecutive failure the pause doubles, up to ``backoff_max_s``."""

    def __init__(self, *, backoff_max_s: float) -> None:
        self._backoff_max_s = backoff_max_s
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, run_once: RunOnce, *, interval_s: float) -> None:
        """Repeat ``run_once``, each time ``interval_s`` after its last end. A function that itself waits for work takes
        0.
        """
        task = asyncio.create_task(self._repeat(name, run_once, interval_s), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks until they have ended. A client's timeout can swallow a cancellation, so it is repeated."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_S)

    async def _repeat(self, name: str, run_once: RunOnce, interval_s: float) -> None:
        failures = 0
        while True:
            try:
                await run_once()
                failures = 0
                pause_s = interval_s
            except Exception as error:  # noqa: BLE001 - a background task survives every error
                failures += 1
                metrics.TASK_FAILURES.labels(name).inc()
                pause_s = min(self._backoff_max_s, _BACKOFF_FIRST_S * 2 ** min(failures - 1, 16))
                expected = isinstance(error, _EXPECTED)
                _log.warning(
                    "background task failed",
                    task=name,
                    failures=failures,
                    error=repr(error),
                    exc_info=None if expected else error,
                )
            await asyncio.sleep(pause_s)
