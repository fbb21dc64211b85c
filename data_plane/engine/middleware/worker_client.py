"""The middleware's connection to the worker's loader. Calls are answered while steps run, in any order.

When the connection breaks, all waiting calls fail, and the next call opens it again. Fails closed: a request whose
adapter cannot be acquired in the worker is not passed on to vLLM.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import Unavailable
from data_plane.engine.worker_protocol import LINE_BYTES_MAX, WorkerCall, WorkerReply, socket_address

Op = Literal["acquire", "load", "pin", "revoke"]


class WorkerUnreachable(Unavailable):
    """The engine's worker does not answer: it is starting, or it has ended."""

    default_code = "engine_worker_unreachable"


class WorkerClient:
    """One connection, shared by all requests on one event loop. Every call raises ``WorkerUnreachable``."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._numbers = itertools.count(1)
        self._acquired: set[str] = set()
        self._waiting: dict[int, asyncio.Future[WorkerReply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def acquire(self, name: str) -> Literal["slot", "memory"] | None:
        """Protect an adapter from eviction until ``release``. Returns its tier, None for neither slot nor memory."""
        self._acquired.add(name)
        return (await self._call("acquire", name=name)).tier

    async def load(self, name: str, folder: Path) -> WorkerReply:
        """Load an acquired adapter from its folder into host memory. ``loaded`` in the reply is False when that
        failed.
        """
        return await self._call("load", name=name, path=str(folder))

    async def pin(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace the set of pinned adapters. Returns the names that are not in host memory."""
        return (await self._call("pin", names=names)).missing

    async def revoke(self, adapters: tuple[str, ...]) -> None:
        """Replace the set of revoked adapter ids."""
        await self._call("revoke", names=adapters)

    def release(self, name: str) -> None:
        """Undo ``acquire``, also one that was never confirmed. Does not wait for the answer: the worker answers a later
        ``acquire`` after it.
        """
        self._acquired.discard(name)
        if self._writer is not None:
            self._write(self._writer, WorkerCall(id=next(self._numbers), op="release", name=name))

    async def close(self) -> None:
        """Close the connection."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _call(self, op: Op, *, name: str = "", path: str = "", names: tuple[str, ...] = ()) -> WorkerReply:
        writer = await self._connected()
        call = WorkerCall(id=next(self._numbers), op=op, name=name, path=path, names=names)
        reply: asyncio.Future[WorkerReply] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = reply
        try:
            self._write(writer, call)
            return await reply
        finally:
            self._waiting.pop(call.id, None)

    def _write(self, writer: asyncio.StreamWriter, call: WorkerCall) -> None:
        writer.write(msgspec.json.encode(call) + b"\n")  # small, and answered before more is sent

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._opening:
            if self._writer is None:
                try:
                    with socket_address(self._run_dir) as address:
                        reader, self._writer = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
                except OSError as error:
                    raise WorkerUnreachable(
                        f"cannot connect to the engine's worker: {error.strerror}", retry_after_s=1
                    ) from error
                self._listener = asyncio.create_task(self._listen(reader, self._writer))
                # Releases during the outage were not sent. Without this call their adapters would never be evicted.
                acquired = WorkerCall(id=next(self._numbers), op="replace_acquired", names=tuple(self._acquired))
                self._write(self._writer, acquired)
            return self._writer

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                reply = msgspec.json.decode(line, type=WorkerReply)
                if (waiting := self._waiting.get(reply.id)) is not None and not waiting.done():
                    waiting.set_result(reply)
        except (OSError, ValueError):  # broken connection or invalid line: in both cases the connection is unusable
            pass
        finally:
            self._writer = None
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(
                        WorkerUnreachable("the engine's worker closed the connection", retry_after_s=1)
                    )
