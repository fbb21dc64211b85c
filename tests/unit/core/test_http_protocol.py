"""Offers to upgrade, and HTTP/1.0 clients: what uvicorn's protocol does with them by itself is wrong or not enough."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from core.http_protocol import HttpLimits, LimitedHttpProtocol

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
LIMITS = HttpLimits(headers_max_bytes=4096, headers_s=10, connections_max=10)


class Protocol(LimitedHttpProtocol):
    def limits_of(self, _config):
        return LIMITS

    def refusal(self, error):
        return [], error.code.encode()


async def echo(scope, receive, send):
    """Answers with the method and the body: in pieces and without a length, unless the path is /whole."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    parts = [scope["method"].encode(), b" ", body]
    sized = [(b"content-length", b"%d" % sum(map(len, parts)))] if scope["path"] == "/whole" else []
    await send({"type": "http.response.start", "status": 200, "headers": sized})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def connected():
    config = uvicorn.Config(echo, log_level="critical", ws="none")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await asyncio.gather(*state.tasks)


async def answer(reader) -> bytes:
    """The chunked body of one response."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), head
    chunks = await reader.readuntil(b"0\r\n\r\n")
    return b"".join(chunks.split(b"\r\n")[1::2])


SIZED = (b"content-length: 5\r\n\r\n", b"hello")
CHUNKED = (b"transfer-encoding: chunked\r\n\r\n", b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")


@pytest.mark.parametrize("split", [False, True], ids=["one packet", "byte by byte"])
@pytest.mark.parametrize(("framing", "body"), [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        b"connection: keep-alive, upgrade\r\nupgrade: TLS/1.0\r\n",
        b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: x\r\n",
        b"connection: Upgrade\r\nconnection: HTTP2-Settings\r\nhttp2-settings: \r\nupgrade: h2c, foo/2\r\n",
        b"upgrade: h2c\r\n",
    ],
    ids=["h2c", "tls", "websocket", "lines", "without connection"],
)
async def test_a_request_that_offers_an_upgrade_keeps_its_body_and_its_connection(offer, framing, body, split):
    sent = b"POST /a?b HTTP/1.1\r\nhost: x\r\n" + offer + framing + body
    async with connected() as (reader, writer):
        for _ in range(2):
            for piece in [sent[at : at + 1] for at in range(len(sent))] if split else [sent]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            assert await answer(reader) == b"POST hello"


async def test_an_offer_beside_close_and_expect_is_answered_as_both_ask():
    async with connected() as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n"
            b"connection: close, Upgrade\r\nupgrade: h2c\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert await answer(reader) == b"POST hello"
        assert await reader.read() == b""


async def test_a_proxy_request_is_refused():
    async with connected() as (reader, writer):
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
        received = await reader.read()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"malformed_http")


@pytest.mark.parametrize("kept", [b"", b"connection: keep-alive\r\n"])
async def test_an_answer_of_unknown_length_to_http_1_0_is_a_body_until_the_connection_closes(kept):
    async with connected() as (reader, writer):
        writer.write(b"POST / HTTP/1.0\r\n" + kept + b"content-length: 5\r\n\r\nhello")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"POST hello"


@pytest.mark.parametrize(("method", "expected"), [(b"POST", b"POST hello"), (b"HEAD", b"")])
async def test_an_answer_of_known_length_to_http_1_0_says_it(method, expected):
    async with connected() as (reader, writer):
        writer.write(method + b" /whole HTTP/1.0\r\ncontent-length: 5\r\n\r\nhello")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"content-length: 10" in head
    assert body == expected
