"""Streams completions and times them: a single request, or a closed loop at a fixed concurrency.

Each benchmark decides which results it compares.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One streamed answer: seconds to its first token and to its end, and tokens by the engine's count.

    ``adapter_load`` is the report of the engine's middleware on loading the adapter, or None without one.
    """

    model: str
    first_token_s: float
    total_s: float
    output_tokens: int
    adapter_load: dict[str, Any] | None = None


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

    Raises aiohttp.ClientError, or RuntimeError when the answer has another length.
    """
    body = {
        "model": model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"} | (
        {"x-tenora-adapter": model, "x-tenora-tenant": tenant} if "@" in model else {}
    )
    started = time.perf_counter()
    first, usage, adapter_load = 0.0, None, None
    async with session.post(f"{url}/v1/completions", json=body, headers=headers, raise_for_status=True) as response:
        async for line in response.content:
            if line.startswith(b": tenora-load "):
                adapter_load = msgspec.json.decode(line.removeprefix(b": tenora-load "))
            if not line.startswith(b"data: {"):
                continue
            first = first or time.perf_counter() - started
            usage = msgspec.json.decode(line[6:]).get("usage") or usage
    if usage is None or usage["completion_tokens"] != output_tokens:
        raise RuntimeError(f"{model} reported usage {usage}; expected {output_tokens} completion tokens")
    return Answer(
        model=model,
        first_token_s=first,
        total_s=time.perf_counter() - started,
        output_tokens=output_tokens,
        adapter_load=adapter_load,
    )


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


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] if ordered else 0.0
