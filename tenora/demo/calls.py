"""Calls the gateway with the official OpenAI SDK: concurrent, streamed and not streamed, with all models mixed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

_CONCURRENCY: Final = 16


@dataclass(frozen=True, kw_only=True)
class Call:
    """One question to one model by one tenant. ``tag`` and ``expected`` are for the demo and are never sent."""

    tenant: str
    model: str
    messages: list[ChatCompletionMessageParam]
    max_tokens: int
    stream: bool
    tag: str
    expected: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text of one answer, and the token usage that the gateway reported."""

    call: Call
    text: str
    input_tokens: int
    output_tokens: int


@dataclass
class Callers:
    """One SDK client per tenant. Retries are off, because the demo must see every refusal."""

    gateway_url: str
    keys: dict[str, str]
    _clients: dict[str, AsyncOpenAI] = field(default_factory=dict)

    def client(self, tenant: str) -> AsyncOpenAI:
        """The tenant's own client."""
        if tenant not in self._clients:
            self._clients[tenant] = AsyncOpenAI(
                base_url=f"{self.gateway_url}/v1", api_key=self.keys[tenant], max_retries=0
            )
        return self._clients[tenant]

    async def ask(self, call: Call) -> Answer:
        """Make one call. Raises openai.APIStatusError on a refusal."""
        client = self.client(call.tenant)
        if not call.stream:
            done = await client.chat.completions.create(
                model=call.model, messages=call.messages, max_tokens=call.max_tokens, temperature=0
            )
            assert done.usage is not None, "a completed answer carries its usage"
            text = done.choices[0].message.content or ""
            return Answer(
                call=call, text=text, input_tokens=done.usage.prompt_tokens, output_tokens=done.usage.completion_tokens
            )
        stream = await client.chat.completions.create(
            model=call.model,
            messages=call.messages,
            max_tokens=call.max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, used = "", (0, 0)
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if chunk.usage is not None:
                used = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        return Answer(call=call, text=text, input_tokens=used[0], output_tokens=used[1])

    async def ask_all(self, calls: list[Call], done: Callable[[Answer], None]) -> list[Answer]:
        """Make all calls, at most ``_CONCURRENCY`` at a time; returns the answers in order of ``calls``.

        Calls ``done`` with each answer as it arrives.
        """
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def one(call: Call) -> Answer:
            async with gate:
                answer = await self.ask(call)
            done(answer)
            return answer

        return await asyncio.gather(*(one(call) for call in calls))

    async def refusal(self, call: Call) -> APIStatusError | None:
        """The error with which the gateway refuses this call, or None when it answers."""
        try:
            await self.ask(call)
        except APIStatusError as error:
            return error
        return None

    async def models(self, tenant: str) -> list[str]:
        """The model ids that the gateway lists for the tenant."""
        return [model.id async for model in self.client(tenant).models.list()]

    async def close(self) -> None:
        """Close every client's connections."""
        for client in self._clients.values():
            await client.close()


def error_body(error: APIStatusError) -> dict[str, Any]:
    """The JSON body of a refusal, as received."""
    body: dict[str, Any] = error.response.json()
    return body
