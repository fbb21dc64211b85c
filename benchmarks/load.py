"""The load generator of the benchmarks that stream completions: a single request, a closed loop over given requests, or
tenants that request at a fixed rate or at a fixed concurrency. ``benchmarks.gateway.client`` is the one that times a
gateway to the microsecond.

Each benchmark decides which results it compares.
"""

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

_BUSY_PAUSE_S: Final = 0.5  # pause of a tenant's closed loop after a refused request


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request: when it was sent, in seconds after the start of its load, its status, seconds to its first token and
    to its end, and its tokens: those of the usage, if it was asked for, or the events.

    ``adapter_load`` is the report of the engine's middleware on loading the adapter, or None without one.
    """

    model: str
    tenant: str = ""
    sent_s: float = 0.0
    status: int = 200
    first_token_s: float
    total_s: float
    output_tokens: int
    adapter_load: dict[str, Any] | None = None

    @property
    def ended_s(self) -> float:
        return self.sent_s + self.total_s


async def send(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    body: Mapping[str, Any],
    *,
    tenant: str = "",
    adapter: bool = False,
    service_class: str = "",
    began: float | None = None,
) -> Answer:
    """Request one completion, refused or not: a stream, unless the body says otherwise. With ``adapter`` the request is
    as a gateway sends it to an engine. ``began`` is when the load began, by ``time.perf_counter``. Raises
    aiohttp.ClientError.
    """
    headers = {"Authorization": f"Bearer {key}"}
    if adapter:
        headers |= {"x-tenora-adapter": body["model"], "x-tenora-tenant": tenant}
    if service_class:
        headers["x-tier"] = service_class
    sent, first, events, last, adapter_load = time.perf_counter(), 0.0, 0, b"{}", None
    async with session.post(f"{url}/v1/completions", json={"stream": True, **body}, headers=headers) as response:
        async for line in response.content:
            if line.startswith(b": tenora-load "):
                adapter_load = msgspec.json.decode(line.removeprefix(b": tenora-load "))
            elif line.startswith((b"data: {", b"{")):
                events, last = events + 1, line.removeprefix(b"data: ")
                first = first or time.perf_counter() - sent
    total_s = time.perf_counter() - sent
    usage = msgspec.json.decode(last).get("usage")
    return Answer(
        model=body["model"],
        tenant=tenant,
        sent_s=0.0 if began is None else sent - began,
        status=response.status,
        first_token_s=first,
        total_s=total_s,
        output_tokens=usage["completion_tokens"] if usage else events,
        adapter_load=adapter_load,
    )


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    *,
    model: str,
    prompt: str | Sequence[int],
    output_tokens: int,
    tenant: str = "tn_benchmark",
) -> Answer:
    """Request one completion of exactly ``output_tokens``.

    Raises aiohttp.ClientError, or RuntimeError when the answer is refused or has another length.
    """
    body = {
        "model": model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = await send(session, url, key, body, tenant=tenant, adapter="@" in model)
    if (answer.status, answer.output_tokens) != (200, output_tokens):
        raise RuntimeError(f"{model}: status {answer.status}, {answer.output_tokens} of {output_tokens} tokens")
    return answer


@dataclass(frozen=True, kw_only=True)
class Load:
    """The result of a closed loop: all answers and its duration in seconds."""

    answers: list[Answer]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.output_tokens for answer in self.answers) / self.seconds

    def first_token_s(self, share: float) -> float:
        """The TTFT quantile at ``share``."""
        return quantile([answer.first_token_s for answer in self.answers], share)


async def closed_loop(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    requests: Sequence[tuple[str, Sequence[int]]],
    *,
    concurrency: int,
    output_tokens: int,
) -> Load:
    """Send ``requests`` (model, prompt) with at most ``concurrency`` in flight; each one that ends starts the next."""
    waiting = iter(requests)
    answers: list[Answer] = []

    async def client() -> None:
        for model, prompt in waiting:
            answers.append(await stream(session, url, key, model=model, prompt=prompt, output_tokens=output_tokens))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(concurrency):
            clients.create_task(client())
    return Load(answers=answers, seconds=time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True)
class TenantLoad:
    """One tenant's traffic: ``per_s`` requests per second at even gaps, or else ``at_once`` always in flight.

    Its connections go to random gateways, or all to gateway number ``gateway``. Batch requests are answered in one
    piece.
    """

    name: str
    key: str
    gateway: int | None = None
    per_s: float = 0.0
    at_once: int = 0
    model: str = "tiny-chat"
    service_class: str = ""


class TenantsLoad:
    """Runs the traffic of several tenants against one or more gateways. Every answer is kept, refusals included."""

    def __init__(self, urls: Sequence[str], *, prompt: str, max_tokens: int) -> None:
        self._urls = urls
        self._prompt = prompt
        self._max_tokens = max_tokens
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
        prompt = f"{self._prompt} {random.randrange(1000)}"  # it decides the witness's answer
        body = {"model": tenant.model, "prompt": prompt, "max_tokens": self._max_tokens}
        body["stream"] = tenant.service_class != "batch"
        answer = await send(
            session, url, tenant.key, body, tenant=tenant.name, service_class=tenant.service_class, began=began
        )
        self.answers.append(answer)
        return answer


def tokens_per_s(answers: Iterable[Answer], *, after_s: float, until_s: float, tenant: str = "") -> float:
    """Tokens per second of the complete answers that ended within this window."""
    within = [
        answer.output_tokens
        for answer in answers
        if answer.status == 200 and after_s <= answer.ended_s < until_s and tenant in ("", answer.tenant)
    ]
    return sum(within) / (until_s - after_s)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] if ordered else 0.0
