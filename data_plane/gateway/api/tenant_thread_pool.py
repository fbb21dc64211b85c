"""Threads for work that would block the event loop: long bodies and long prompts.

This work happens before any quota is reserved. Each tenant therefore queues behind its own work: it gets at most all
threads but one, and only part of the queue.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from core.errors import TooManyRequests, Unavailable

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class _TenantQueue:
    """One tenant's work: running, waiting for a thread, and queued behind that."""

    def __init__(self, threads: int) -> None:
        self.threads = asyncio.Semaphore(threads)
        self.waiting = 0


class TenantThreadPool:
    """A few threads, shared between tenants. Started work is never interrupted."""

    def __init__(self, threads: int, *, waiting_max: int, tenant_waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="long")
        self._of_tenant = max(1, threads - 1)
        self._waiting_max = waiting_max
        self._tenant_waiting_max = tenant_waiting_max
        self._waiting = 0
        self._queues: dict[str, _TenantQueue] = {}

    async def run(self, tenant_id: str, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Run ``function`` in a thread. Raises TooManyRequests when this tenant has too much work queued, and
        Unavailable when all tenants together have.
        """
        queue = self._queues.get(tenant_id)
        if queue is not None and queue.waiting >= self._tenant_waiting_max:
            raise TooManyRequests(
                f"The gateway queues at most {self._tenant_waiting_max} long requests of one tenant. Retry in 1 s.",
                code="too_many_long_requests",
                retry_after_s=1,
            )
        if self._waiting >= self._waiting_max:
            raise Unavailable(
                "The gateway is processing too many long requests. Retry in 1 s.",
                code="overloaded",
                retry_after_s=1,
            )
        if queue is None:
            queue = self._queues[tenant_id] = _TenantQueue(self._of_tenant)
        queue.waiting += 1
        self._waiting += 1
        try:
            async with queue.threads:
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        finally:
            self._waiting -= 1
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[tenant_id]

    def close(self) -> None:
        """Stop accepting work and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
