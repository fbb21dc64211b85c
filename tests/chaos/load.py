"""Callers: many simultaneous streams over several gateways, and the result of each. They do not retry."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp
import msgspec

End = Literal["done", "error", "cut", "refused"]


@dataclass
class CallResult:
    """The result of one call. ``pieces`` counts pieces of text.

    ``end`` is ``done`` (complete), ``error`` (an error event after the start), ``cut`` (no event) or ``refused`` (a
    status before the start).
    """

    gateway: str
    request_id: str = ""
    status: int = 0
    pieces: int = 0
    end: End = "cut"
    code: str = ""
    began_s: float = 0.0
    first_s: float | None = None  # after the start
    ended_s: float = 0.0


class Load:
    """Calls in a separate thread, from construction until ``join``."""

    def __init__(
        self, gateways: Sequence[str], key: str, calls: int, *, stream: bool = True, max_tokens: int = 100,
        spread_s: float = 0.5, timeout_s: float = 40, model: str = "tiny-chat",
    ) -> None:  # fmt: skip
        self._headers = {"authorization": f"Bearer {key}"}
        self._body = {"model": model, "max_tokens": max_tokens, "stream": stream}
        self._stream, self._spread_s, self._timeout_s = stream, spread_s, timeout_s
        self.results = [CallResult(gateways[number % len(gateways)]) for number in range(calls)]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def join(self) -> list[CallResult]:
        """Wait for all calls and return their results."""
        self._thread.join()
        return self.results

    @property
    def begun(self) -> int:
        """Number of calls that have received text."""
        return sum(one.pieces > 0 for one in self.results)

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as session:
            await asyncio.gather(*(self._call(session, number, one) for number, one in enumerate(self.results)))

    async def _call(self, session: aiohttp.ClientSession, number: int, result: CallResult) -> None:
        await asyncio.sleep(self._spread_s * number / len(self.results))
        result.began_s = time.monotonic()
        body = {**self._body, "messages": [{"role": "user", "content": f"call {number}"}]}
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.post(f"{result.gateway}/v1/chat/completions", json=body) as response:
                result.request_id = response.headers.get("x-request-id", "")
                result.status = response.status
                if response.status != 200:
                    result.end, result.code = "refused", (await response.json())["error"]["code"]
                elif self._stream:
                    await self._read_stream(response, result)
                else:
                    answer = await response.json()
                    result.pieces, result.end = answer["usage"]["completion_tokens"], "done"
        result.ended_s = time.monotonic() - result.began_s

    async def _read_stream(self, response: aiohttp.ClientResponse, result: CallResult) -> None:
        async for raw in response.content:
            line = raw.strip()
            if line == b"data: [DONE]":
                result.end = "done"
            elif line.startswith(b"data: "):
                event = msgspec.json.decode(line[6:])
                if "error" in event:
                    result.end, result.code = "error", event["error"]["code"]
                elif event["choices"] and event["choices"][0]["delta"].get("content"):
                    result.pieces += 1
                    if result.first_s is None:
                        result.first_s = time.monotonic() - result.began_s
