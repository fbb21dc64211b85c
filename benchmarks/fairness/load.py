"""Tenants that request streams from a gateway, at a fixed rate or at a fixed concurrency.

Every answer is kept, refusals included. ``benchmarks.fairness.__main__`` computes the fairness figures from them.
"""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import aiohttp

_BUSY_PAUSE_S = 0.5  # pause of a closed loop after a refused request


@dataclass(frozen=True, kw_only=True)
class TenantLoad:
    """One tenant's traffic: ``per_s`` requests per second at even gaps, or else ``at_once`` always in flight.

    Its connections go to random gateways, or all to gateway number ``gateway``.
    """

    name: str
    key: str
    gateway: int | None = None
    per_s: float = 0.0
    at_once: int = 0
    model: str = "tiny-chat"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request: its send time (seconds after the start), status, seconds to its first token and to its end, and
    received tokens.
    """

    tenant: str
    sent_s: float
    status: int
    first_token_s: float
    total_s: float
    tokens: int

    @property
    def ended_s(self) -> float:
        return self.sent_s + self.total_s


class Load:
    """Runs the traffic of several tenants against one or more gateways."""

    def __init__(self, urls: Sequence[str], *, prompt: str, max_tokens: int) -> None:
        self._urls = [url + "/v1/completions" for url in urls]
        self._body = {"max_tokens": max_tokens, "stream": True}
        self._prompt = prompt
        self.answers: list[Answer] = []

    async def run(self, tenants: Iterable[TenantLoad], *, seconds: float) -> list[Answer]:
        """Send for ``seconds`` and return all answers, including those that arrive later."""
        self.answers = []
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            began = time.perf_counter()
            for tenant in tenants:
                if tenant.per_s:
                    tasks.create_task(self._open_loop(session, tenant, began, seconds))
                for _ in range(tenant.at_once):
                    tasks.create_task(self._closed_loop(session, tenant, began, seconds))
        return self.answers

    async def _open_loop(
        self, session: aiohttp.ClientSession, tenant: TenantLoad, began: float, seconds: float
    ) -> None:
        async with asyncio.TaskGroup() as requests:
            for number in range(int(seconds * tenant.per_s)):
                await asyncio.sleep(began + number / tenant.per_s - time.perf_counter())
                requests.create_task(self._ask(session, tenant, began, self._url(tenant)))

    async def _closed_loop(
        self, session: aiohttp.ClientSession, tenant: TenantLoad, began: float, seconds: float
    ) -> None:
        url = self._url(tenant)  # chosen once, as for a keep-alive connection
        while time.perf_counter() - began < seconds:
            if (await self._ask(session, tenant, began, url)).status != 200:
                await asyncio.sleep(_BUSY_PAUSE_S)

    def _url(self, tenant: TenantLoad) -> str:
        return random.choice(self._urls) if tenant.gateway is None else self._urls[tenant.gateway % len(self._urls)]

    async def _ask(self, session: aiohttp.ClientSession, tenant: TenantLoad, began: float, url: str) -> Answer:
        sent, first, tokens = time.perf_counter(), 0.0, 0
        headers = {"Authorization": f"Bearer {tenant.key}"}
        body = {
            **self._body,
            "model": tenant.model,
            "prompt": f"{self._prompt} {random.randrange(1000)}",
        }  # the prompt decides the witness's answer
        async with session.post(url, json=body, headers=headers) as response:
            if response.status == 200:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        tokens += 1
                        first = first or time.perf_counter() - sent
            else:
                await response.read()
        answer = Answer(
            tenant=tenant.name, sent_s=sent - began, status=response.status, first_token_s=first,
            total_s=time.perf_counter() - sent, tokens=tokens,
        )  # fmt: skip
        self.answers.append(answer)
        return answer


def tokens_per_s(answers: Iterable[Answer], *, after_s: float, until_s: float, tenant: str = "") -> float:
    """Tokens per second of the complete answers that ended within this window."""
    within = [
        answer.tokens
        for answer in answers
        if answer.status == 200 and after_s <= answer.ended_s < until_s and tenant in ("", answer.tenant)
    ]
    return sum(within) / (until_s - after_s)
