"""The connection to Redis keeps its callers' deadlines, whatever the server does, and leaves nothing open."""

import asyncio
import time

import pytest

from data_plane.gateway.quota.lua_script import Script
from data_plane.gateway.state.redis_connection import RedisConnection


class Server:
    """Answers every command after a set time, or never."""

    def __init__(self, reply: bytes, *, after_s: float) -> None:
        self._reply = reply
        self._after_s = after_s
        self.open = 0
        self.empty = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.empty.clear()
        try:
            while await reader.read(65536):
                await asyncio.sleep(self._after_s)
                writer.write(self._reply)
        finally:
            self.open -= 1
            if not self.open:
                self.empty.set()
            writer.close()


def line_to(server: Server, secret: str = "") -> RedisConnection:
    return RedisConnection(f"redis://{secret}127.0.0.1:{server.port}/0", connect_s=5, stalled_s=30, pending_max=100)


async def ticked(after_s: float) -> float:
    """The time at which a timer of the same loop fired: a pause of the machine delays both."""
    await asyncio.sleep(after_s)
    return time.monotonic()


async def test_a_script_that_must_be_loaded_first_keeps_one_deadline(promised_s):
    async with Server(b"-NOSCRIPT No matching script.\r\n", after_s=1) as server:
        line = line_to(server)
        due = asyncio.create_task(ticked(1.25))
        with pytest.raises(TimeoutError):
            await Script("reserve")(line, [], [], within_s=1.25)
        assert time.monotonic() - await due < promised_s(0.25)  # the second of its commands would last until 2
        await line.close()


async def test_a_silent_server_keeps_no_connection():
    async with Server(b"", after_s=0) as server:
        line = line_to(server, ":secret@")
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await line.call("PING", due=time.monotonic() + 0.02)
        async with asyncio.timeout(2):
            await server.empty.wait()


async def test_callers_time_out_and_late_answers_reach_no_other_caller():
    async with Server(b"+PONG\r\n", after_s=1) as server:
        line = line_to(server)
        began, due = time.monotonic(), asyncio.create_task(ticked(0.2))
        with pytest.raises(TimeoutError):
            await line.call("PING", due=began + 0.2)
        ended = time.monotonic()
        assert ended >= began + 0.2
        assert ended - await due < 0.15
        assert await line.call("PING") == b"PONG"
        assert not line._wire.pending
        await line.close()


async def test_a_command_that_cannot_be_packed_takes_no_other_commands_reply():
    async with Server(b"+PONG\r\n", after_s=0) as server:
        line = line_to(server)
        with pytest.raises(UnicodeEncodeError):
            await line.call("GET", "\ud800")
        assert await line.call("PING", due=time.monotonic() + 20) == b"PONG"
        await line.close()
