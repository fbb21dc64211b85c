"""Connections to engines, against servers that answer byte by byte, late, wrongly, twice, or not at all."""

import asyncio
import contextlib
import errno

import pytest

from data_plane.gateway.upstream.connection import EngineLost
from data_plane.gateway.upstream.connection_pool import ConnectionPool, ConnectionsExhausted

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
BOUNDS = {
    "connect_s": 1, "keepalive_s": 5, "connections_max": 10, "spare": 1,
    "head_max_bytes": 65_536, "unread_max_bytes": 262_144,
}  # fmt: skip


class Engine:
    """Answers every request with the bytes that ``say`` writes."""

    def __init__(self, say):
        self.say = say
        self.connections = 0
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self.say(writer)
                await writer.drain()


@contextlib.asynccontextmanager
async def engine(say, **options):
    if isinstance(raw := say, bytes):

        async def say(writer):
            writer.write(raw)

    made = Engine(say)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    lines = ConnectionPool(**{**BOUNDS, **options})
    made.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made, lines
    finally:
        lines.close()
        server.close()
        for writer in made.writers:
            writer.close()


async def ask(lines, engine, body=b"{}", **headers):
    return await lines.request("POST", engine.origin, "/v1/chat", headers, body)


async def read_all(answer) -> bytes:
    try:
        return await answer.read(1 << 30)
    finally:
        answer.close()


@pytest.mark.parametrize(("raw", "body"), [(WHOLE, b"hello"), (CHUNKED, b"hello world")])
async def test_an_answer_is_the_same_for_any_split_into_packets(raw, body):
    async def drip(writer):
        for byte in raw:
            writer.write(bytes([byte]))
            await writer.drain()

    for say in (raw, drip):
        async with engine(say) as (server, lines):
            for _ in range(3):
                answer = await ask(lines, server, b'{"a":1}', authorization="Bearer k")
                assert answer.status == 200
                assert await read_all(answer) == body
            assert server.connections == 1
            assert server.requests[0].startswith(b"POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1:")
            assert server.requests[0].endswith(b'authorization: Bearer k\r\ncontent-length: 7\r\n\r\n{"a":1}')


async def test_headers_are_found_by_lower_case_names():
    async with engine(b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + WHOLE) as (server, lines):
        answer = await ask(lines, server)
        assert dict(answer.headers) == {"content-type": "a/b", "content-length": "5"}
        assert await read_all(answer) == b"hello"


@pytest.mark.parametrize(
    "raw",
    [
        WHOLE[:-2],
        CHUNKED[:-3],
        b"HTTP/1.1 200",
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["short body", "no last chunk", "half a head", "nothing", "no HTTP", "a huge head", "no chunk"],
)
async def test_an_incomplete_answer_fails_its_caller(raw):
    async def say(writer):
        writer.write(raw)
        writer.close()

    async with engine(say) as (server, lines):
        with pytest.raises(EngineLost):
            await read_all(await ask(lines, server))
        with pytest.raises(EngineLost):
            await read_all(await ask(lines, server))
        assert server.connections == 2


async def test_a_connection_with_an_unread_answer_is_not_reused():
    async with engine(CHUNKED) as (server, lines):
        (await ask(lines, server)).close()
        assert await read_all(await ask(lines, server)) == b"hello world"
        assert server.connections == 2


async def test_a_second_answer_reaches_no_caller():
    async with engine(WHOLE + WHOLE.replace(b"hello", b"evil!")) as (server, lines):
        for _ in range(2):
            assert await read_all(await ask(lines, server)) == b"hello"
        assert server.connections == 2


async def test_an_unrequested_answer_ends_the_connection():
    async with engine(WHOLE) as (server, lines):
        assert await read_all(await ask(lines, server)) == b"hello"
        server.writers[0].write(WHOLE.replace(b"hello", b"evil!"))
        await server.writers[0].drain()
        await asyncio.sleep(0.05)
        assert await read_all(await ask(lines, server)) == b"hello"
        assert server.connections == 2


async def test_closing_an_answer_twice_does_not_affect_the_connections_next_user():
    async with engine(WHOLE) as (server, lines):
        first = await ask(lines, server)
        assert await read_all(first) == b"hello"
        second = await ask(lines, server)
        first.close()
        assert await read_all(second) == b"hello"
        assert server.connections == 1


async def test_connections_idle_too_long_or_ended_by_the_engine_are_not_reused():
    async with engine(WHOLE, keepalive_s=0.01) as (server, lines):
        await read_all(await ask(lines, server))
        await asyncio.sleep(0.03)
        await read_all(await ask(lines, server))
        assert server.connections == 2
    async with engine(WHOLE) as (server, lines):
        await read_all(await ask(lines, server))
        server.writers[0].close()
        await asyncio.sleep(0.05)
        await read_all(await ask(lines, server))
        assert server.connections == 2


async def test_connections_are_bounded_and_idle_ones_make_room():
    async with engine(WHOLE) as (server, _), engine(WHOLE, connections_max=2) as (other, lines):
        first, second = await ask(lines, server), await ask(lines, server)
        with pytest.raises(ConnectionsExhausted, match="2 connections"):
            await ask(lines, other)
        spare = await lines.request("GET", other.origin, "/health", {}, spare=True)
        assert await read_all(spare) == b"hello"
        assert other.connections == 1
        await read_all(first)
        assert await read_all(await ask(lines, other)) == b"hello"
        await read_all(second)


async def test_connections_being_opened_count_towards_the_limit():
    async with engine(WHOLE, connections_max=3) as (server, lines):
        answers = await asyncio.gather(*(ask(lines, server) for _ in range(8)), return_exceptions=True)
        assert server.connections == 3
        assert sum(isinstance(answer, ConnectionsExhausted) for answer in answers) == 5


async def test_an_unread_answer_pauses_the_engine():
    sent = 0

    async def flood(writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with engine(flood) as (server, lines):
        answer = await ask(lines, server)
        await asyncio.sleep(0.3)
        assert sent < 32 << 20
        assert len(await read_all(answer)) == 64 << 20


async def test_a_cancelled_caller_leaves_no_connection_open():
    async with engine(b"") as (server, lines):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ask(lines, server)
        await asyncio.sleep(0.05)
        assert not lines._open


async def test_a_refused_connection_is_an_oserror():
    lines = ConnectionPool(**BOUNDS)
    with pytest.raises(ConnectionRefusedError):
        await lines.request("GET", "http://127.0.0.1:1", "/", {})


async def test_running_out_of_file_descriptors_is_not_the_engines_failure(monkeypatch):
    async with engine(WHOLE) as (server, lines):

        async def full(*_arguments, **_options):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", full)
        with pytest.raises(ConnectionsExhausted, match="Too many open files"):
            await ask(lines, server)


async def test_trailers_are_ignored_and_bounded():
    trailing = CHUNKED[:-2] + b"content-type: evil/one\r\n"

    async def endless(writer):
        writer.write(trailing)
        for _ in range(64):
            writer.write(b"x: " + b"y" * 65_536 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)

    async with engine(trailing + b"\r\n") as (server, lines):
        answer = await ask(lines, server)
        assert await read_all(answer) == b"hello world"
        assert "content-type" not in answer.headers
    async with engine(endless) as (server, lines):
        with pytest.raises(EngineLost, match="too large"):
            await read_all(await ask(lines, server))


async def test_a_multi_line_header_is_refused_without_using_a_connection():
    async with engine(WHOLE) as (server, lines):
        await read_all(await ask(lines, server))
        with pytest.raises(AssertionError):
            await ask(lines, server, odd="a\r\nb: c")
        assert await read_all(await ask(lines, server)) == b"hello"
        assert server.connections == 1


async def test_the_pool_of_an_unused_engine_is_removed():
    async with engine(WHOLE) as (server, lines):
        await read_all(await ask(lines, server))
        answer = await ask(lines, server)
        assert not lines._idle
        answer.close()
