"""Calls the gateways for the playground: up to three models on one prompt, each as a stream, with what each took.

The calls are ordinary metered requests of an API key that each member has for it. Its secret is sealed in the database
and never reaches the browser.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec
from sqlmodel import Session

from control_plane.auth.authenticate import Pepper
from control_plane.members.models import Membership
from core.errors import InvalidRequest
from core.sealed_secrets import CannotOpen, Sealer

MODELS_MAX: Final = 3
KEY_LIMITS: Final = {"requests_per_minute": 60, "concurrent_requests": MODELS_MAX * 2}
_TIMEOUT: Final = httpx.Timeout(120, connect=5)
_TEXT_MAX: Final = 32_000
_ERROR_BYTES_MAX: Final = 64 << 10


class PlaygroundKeys:
    """Seals and opens the secrets of members' keys."""

    def __init__(self, pepper: Pepper) -> None:
        self._sealer = Sealer(pepper.all, purpose=b"tenora console: playground")

    def find(self, session: Session, tenant_id: str, user_id: str) -> str | None:
        """The secret of the member's key; None before there is one."""
        member = session.get(Membership, (tenant_id, user_id))
        if member is None or member.playground_sealed is None:
            return None
        try:
            return self._sealer.open(member.playground_sealed, f"{tenant_id} {user_id}")
        except CannotOpen:
            return None

    def keep(self, session: Session, tenant_id: str, user_id: str, secret: str) -> None:
        """Keep the secret of a new key."""
        member = session.get(Membership, (tenant_id, user_id), with_for_update=True)
        if member is not None:
            member.playground_sealed = self._sealer.seal(secret, f"{tenant_id} {user_id}")


@dataclass(kw_only=True)
class Pane:
    """One model's answer as it arrives. Times are in milliseconds since the call."""

    model: str
    text: str = ""
    error: str = ""
    code: str = ""
    request_id: str = ""
    first_ms: float | None = None
    whole_ms: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first one."""
        tokens, first, whole = self.usage.get("completion_tokens", 0), self.first_ms, self.whole_ms
        if first is None or whole is None or tokens < 2 or whole <= first:
            return None
        return float((tokens - 1) * 1000 / (whole - first))


def body_of(model: str, form: Mapping[str, str]) -> dict[str, Any]:
    """The body of a chat completion. The gateway checks its values. Raises InvalidRequest for what is no number."""
    messages = [
        {"role": role, "content": form[role][:_TEXT_MAX]} for role in ("system", "user") if form.get(role, "").strip()
    ]
    body: dict[str, Any] = {"model": model, "messages": messages}
    for name, kind in (("max_tokens", int), ("seed", int), ("temperature", float), ("top_p", float)):
        if text := form.get(name, "").strip():
            try:
                body[name] = kind(text)
            except ValueError:
                raise InvalidRequest(f"{name}: {text[:40]!r} is not a number.", param=name) from None
    return body


async def answers(
    gateway_url: str, secret: str, bodies: Sequence[Mapping[str, Any]]
) -> AsyncIterator[tuple[int, Pane]]:
    """Each pane after each change of it, with its number. All calls end when the caller stops iterating."""
    changes: asyncio.Queue[tuple[int, Pane] | None] = asyncio.Queue(maxsize=64)
    async with httpx.AsyncClient(base_url=gateway_url, timeout=_TIMEOUT, trust_env=False) as http:
        panes = [Pane(model=str(body["model"])) for body in bodies]
        tasks = [
            asyncio.create_task(_fill(http, secret, number, pane, body, changes))
            for number, (pane, body) in enumerate(zip(panes, bodies, strict=True))
        ]
        running = len(tasks)
        try:
            while running:
                change = await changes.get()
                if change is None:
                    running -= 1
                else:
                    yield change
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(
    http: httpx.AsyncClient,
    secret: str,
    number: int,
    pane: Pane,
    body: Mapping[str, Any],
    changes: "asyncio.Queue[tuple[int, Pane] | None]",
) -> None:
    """Read one stream into its pane. A failure is the pane's own."""
    started = time.monotonic()
    sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with http.stream(
            "POST", "/v1/chat/completions", json=sent, headers={"authorization": f"Bearer {secret}"}
        ) as answer:
            pane.request_id = answer.headers.get("x-request-id", "")
            if answer.is_error:
                _refused(pane, (await answer.aread())[:_ERROR_BYTES_MAX])
            else:
                async for line in answer.aiter_lines():
                    if _read(pane, line, (time.monotonic() - started) * 1000):
                        await changes.put((number, pane))
    except httpx.HTTPError as error:
        pane.error, pane.code = f"The gateway did not answer ({type(error).__name__}).", "gateway_unreachable"
    pane.whole_ms = (time.monotonic() - started) * 1000
    await changes.put((number, pane))
    await changes.put(None)


def _read(pane: Pane, line: str, now_ms: float) -> bool:
    """Take an event of the stream. Returns whether the pane's text has changed."""
    if not line.startswith("data: {"):
        return False
    event = msgspec.json.decode(line.removeprefix("data: "))
    if usage := event.get("usage"):
        pane.usage = usage
    if error := event.get("error"):
        pane.error, pane.code = str(error.get("message", "")), str(error.get("code", ""))
    text = "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", ()))
    if text and pane.first_ms is None:
        pane.first_ms = now_ms
    pane.text += text
    return bool(text)


def _refused(pane: Pane, content: bytes) -> None:
    try:
        error = msgspec.json.decode(content)["error"]
        pane.error, pane.code = str(error["message"]), str(error["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        pane.error, pane.code = "The gateway's answer cannot be read.", "gateway_unreadable"
