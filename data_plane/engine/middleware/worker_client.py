"""The door's end of the line to the worker's loader. Calls are answered while steps run, in any order.

A line that breaks fails what waits on it and is opened again by the next call. Fails closed: who cannot ask the worker
must not let a request in.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import Unavailable
from data_plane.engine.worker_protocol import LINE_BYTES_MAX, WorkerCall, WorkerReply, socket_address

Op = Literal["hold", "load", "pin", "refuse"]


class WorkerUnreachable(Unavailable):
    """The engine's worker does not answer: it is starting or gone."""

    default_code = "engine_worker_unreachable"


class WorkerClient:
    """One connection, shared by everyone on one event loop."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._numbers = itertools.count(1)
        self._held: set[str] = set()
        self._waiting: dict[int, asyncio.Future[WorkerReply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def hold(self, name: str) -> Literal["slot", "memory"] | None:
        """Keep an adapter where it is until ``release``; tells where, None for neither slot nor memory."""
        self._held.add(name)
        return (await self._call("hold", name=name)).tier

    async def load(self, name: str, folder: Path) -> WorkerReply:
        """Bring a held adapter from its folder into host memory; the reply says whether that worked."""
        return await self._call("load", name=name, path=str(folder))

    async def pin(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace the pinned set; returns those that are not in host memory."""
        return (await self._call("pin", names=names)).missing

    async def refuse(self, adapters: tuple[str, ...]) -> None:
        """Replace the set of refused adapter ids."""
        await self._call("refuse", names=adapters)

    def release(self, name: str) -> None:
        """Give up a hold, also one that was never confirmed. Nobody waits for the answer; a later ``hold`` is answered
        after it.
        """
        self._held.discard(name)
        if self._writer is not None:
            self._write(self._writer, WorkerCall(id=next(self._numbers), op="release", name=name))

    async def close(self) -> None:
        """Hang up."""
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
                        f"the engine's worker cannot be asked for adapters: {error.strerror}", retry_after_s=1
                    ) from error
                self._listener = asyncio.create_task(self._listen(reader, self._writer))
                # What was released while the line was broken would be kept for ever otherwise.
                held = WorkerCall(id=next(self._numbers), op="hold_only", names=tuple(self._held))
                self._write(self._writer, held)
            return self._writer

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                reply = msgspec.json.decode(line, type=WorkerReply)
                if (waiting := self._waiting.get(reply.id)) is not None and not waiting.done():
                    waiting.set_result(reply)
        except (OSError, ValueError):  # broken off, or not a line of ours: the line is of no more use either way
            pass
        finally:
            self._writer = None
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(WorkerUnreachable("the engine's worker hung up", retry_after_s=1))
