"""The bare relay that the gateway is compared with: the same server, framework and HTTP client, and nothing else.

It checks no keys, counts nothing, and forwards bytes as they arrive.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import click
import uvicorn
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send

_KEPT: Final = (b"content-type", b"cache-control")


def create_app(upstream: str) -> Litestar:
    """The relay as an ASGI application."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            sessions.append(session)
            yield

    @asgi("/", is_mount=True)
    async def relay(scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        while True:
            message: Any = await receive()  # ASGI's union of dicts
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        headers = {"content-type": "application/json"}
        url = upstream + scope["raw_path"].decode()
        async with sessions[0].post(url, data=bytes(body), headers=headers) as response:
            kept = [(name.lower(), value) for name, value in response.raw_headers if name.lower() in _KEPT]
            if response.content_length is not None:
                kept.append((b"content-length", b"%d" % response.content_length))
            await send({"type": "http.response.start", "status": response.status, "headers": kept})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Litestar(route_handlers=[relay], lifespan=[lifespan], openapi_config=None, logging_config=None)


@click.command(help=__doc__)
@click.option("--port", type=int, required=True)
@click.option("--upstream", required=True, help="Base URL to forward to, as http://host:port.")
def main(port: int, upstream: str) -> None:
    """Serve on a loopback port with one process."""
    uvicorn.run(
        create_app(upstream), host="127.0.0.1", port=port, loop="uvloop", http="httptools", ws="none", lifespan="on",
        access_log=False, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main()
