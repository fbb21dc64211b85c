"""Threads for what would hold up the loop: long bodies and long prompts. No quota has been asked by then, so that each
tenant waits behind itself: of several threads it has all but one at most, and only some of the places to wait.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from core.errors import TooManyRequests, Unavailable

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class _Line:
    """One tenant's work: what runs or stands for a thread, and what waits behind that."""

    def __init__(self, threads: int) -> None:
        self.turns = asyncio.Semaphore(threads)
        self.waiting = 0


class TenantThreadPool:
    """A few threads, shared between tenants. Work that has begun is not stopped."""

    def __init__(self, threads: int, *, waiting_max: int, tenant_waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="long")
        self._of_tenant = max(1, threads - 1)
        self._waiting_max = waiting_max
        self._tenant_waiting_max = tenant_waiting_max
        self._waiting = 0
        self._lines: dict[str, _Line] = {}

    async def run(self, tenant_id: str, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """``function`` in a thread. Raises TooManyRequests where this tenant has too much of this, and Unavailable
        where all together have.
        """
        line = self._lines.get(tenant_id)
        if line is not None and line.waiting >= self._tenant_waiting_max:
            raise TooManyRequests(
                f"At most {self._tenant_waiting_max} of your long requests are read and counted at a time.",
                code="too_many_long_requests",
                retry_after_s=1,
            )
        if self._waiting >= self._waiting_max:
            raise Unavailable("Too many long requests are being read and counted.", code="overloaded", retry_after_s=1)
        if line is None:
            line = self._lines[tenant_id] = _Line(self._of_tenant)
        line.waiting += 1
        self._waiting += 1
        try:
            async with line.turns:
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        finally:
            self._waiting -= 1
            line.waiting -= 1
            if not line.waiting:
                del self._lines[tenant_id]

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
