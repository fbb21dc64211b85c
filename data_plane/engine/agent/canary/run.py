"""Generates a canary's answers on the agent's own engine and counts all their tokens, also those of failed answers.

``canary.verdict`` decides which answers pass; ``canary.jobs`` takes the jobs.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from core.ids import new_id
from data_plane.engine.agent.canary.verdict import CanaryAnswer, TokenLogprobs
from data_plane.engine.agent.engine_client import ProbeTokens

PROMPTS: Final = (
    "What is the capital of France?",
    "My card was declined at the till. What should I do?",
    "Write one sentence about rain.",
)
_SHORT_TOKENS: Final = 4  # for every prompt except the first, whose answer is shown
_TOP: Final = 5
_DATA: Final = b"data: "


class AnswerFailed(Exception):
    """The engine returned an error instead of an answer. ``status`` is 200 when the error came after the first byte."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(slots=True)
class _Running:
    """One answer so far. ``usage`` is the engine's running token count."""

    text: str = ""
    usage: tuple[int, int] = (0, 0)


class CanaryRun:
    """One engine, called through its OpenAI API. ``first_token_ms`` is the last run's wait for its first token."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, engine_key: str, tokens: ProbeTokens, *, answer_s: float
    ) -> None:
        self._session = session
        self._url = url
        self._authorization = f"Bearer {engine_key}"
        self._tokens = tokens
        self._timeout = aiohttp.ClientTimeout(total=answer_s)
        self.first_token_ms = 0

    async def answers(self, model: str, *, adapter: bool, answer_tokens: int) -> list[CanaryAnswer]:
        """The greedy answers to PROMPTS, generated one after the other, so that both models run under the same
        conditions, and with a cache salt of their own, so that neither uses a cached prefix. Raises AnswerFailed,
        aiohttp.ClientError, TimeoutError.
        """
        salt, found, began = secrets.token_hex(16), [], time.monotonic()
        self.first_token_ms = 0
        for position, prompt in enumerate(PROMPTS):
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": answer_tokens if position == 0 else _SHORT_TOKENS,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": _TOP,
                "return_tokens_as_token_ids": True,
                "cache_salt": salt,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            found.append(await self._answer(body, model if adapter else None, began if position == 0 else None))
        return found

    async def _answer(self, body: dict[str, Any], adapter: str | None, began: float | None) -> CanaryAnswer:
        headers = {
            "Authorization": self._authorization,
            "Content-Type": "application/json",
            "X-Request-Id": new_id("req"),
        }
        if adapter is not None:
            headers["x-tenora-adapter"] = adapter
        running, steps = _Running(), list[TokenLogprobs]()
        try:
            async with self._session.post(
                f"{self._url}/v1/chat/completions",
                data=msgspec.json.encode(body),
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise AnswerFailed(response.status, (await response.content.read(500)).decode(errors="replace"))
                async for event in _events(response):
                    steps += _read(event, running)
                    if began is not None and steps and not self.first_token_ms:
                        self.first_token_ms = round((time.monotonic() - began) * 1000)
        finally:  # closing the connection ends the request on the engine, which has counted the tokens so far
            prompt_tokens, output_tokens = running.usage
            if output_tokens:
                self._tokens.add(prompt_tokens, output_tokens)
        return CanaryAnswer(running.text, tuple(steps))


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. Raises AnswerFailed for an error event."""
    async for line in response.content:
        if not line.startswith(_DATA) or line.strip() == b"data: [DONE]":
            continue
        event = msgspec.json.decode(line[len(_DATA) :])
        if not isinstance(event, dict) or "error" in event:
            raise AnswerFailed(200, str(event)[:500])
        yield event


def _read(event: dict[str, Any], running: _Running) -> list[TokenLogprobs]:
    """Read one chunk. JSON has no NaN or infinity: such a number arrives as null and is read as NaN."""
    if usage := event.get("usage"):
        running.usage = (int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
    steps = []
    for choice in event.get("choices") or ():
        running.text += (choice.get("delta") or {}).get("content") or ""
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            ranked = {each["token"]: _number(each.get("logprob")) for each in entry.get("top_logprobs") or ()}
            steps.append(TokenLogprobs(entry["token"], {entry["token"]: _number(entry.get("logprob")), **ranked}))
    return steps


def _number(value: object) -> float:
    with contextlib.suppress(TypeError, ValueError):
        return float(value)  # type: ignore[arg-type] # any value that is not a number becomes NaN
    return float("nan")
