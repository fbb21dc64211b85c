"""The client connection of Anthropic's Messages API: its key header, error shape, rate-limit headers and events.

The request itself is handled like any other: authenticated, counted, reserved, settled and billed.
"""

import re
from datetime import timedelta
from typing import Any, Final

import msgspec
from litestar.types import HTTPScope, Receive, Send

from core import clock
from core.errors import AppError
from data_plane.gateway.api.anthropic_response import Events, message, model_info, model_page
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.errors import ContextLengthExceeded, Headers, error_headers

PREFIX: Final = b"/v1/messages"
MODELS: Final = b"/v1/models"

_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_RATE: Final = re.compile(rb"x-ratelimit-(limit|remaining|reset)-([a-z-]+)")
_DURATION: Final = re.compile(rb"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:(\d+)ms)?")


class AnthropicClient(Client):
    """A client that expects Anthropic's format. It receives relayed answers in OpenAI's format and translates them."""

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send, headers: Headers) -> None:
        named = [(b"request-id", value) for name, value in headers if name == b"x-request-id"]
        super().__init__(scope, receive, send, headers + named)
        self._request_id = named[0][1].decode()
        self._query = scope["query_string"].decode("latin-1")
        self._events: Events | None = None
        self.request_headers = [  # x-api-key is another header for the same key
            (b"authorization", b"Bearer " + value) if name == b"x-api-key" else (name, value)
            for name, value in self.request_headers
        ]

    @staticmethod
    def speaks(scope: HTTPScope) -> bool:
        """Whether a request expects this format. Both APIs have ``/v1/models``; Anthropic's has a version header."""
        path = scope["raw_path"]
        return path.startswith(PREFIX) or (
            path.startswith(MODELS) and any(name == b"anthropic-version" for name, _ in scope["headers"])
        )

    def model(self, entry: dict[str, Any]) -> dict[str, Any]:
        return model_info(entry)

    def models(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return model_page(entries, self._query)

    async def start(self, status: int, headers: Headers) -> None:
        """Start a response, with rate limits under Anthropic's names."""
        await super().start(status, [_rate_header(name, value) for name, value in headers])

    def begin(self, headers: Headers, body: bytes) -> bool:
        """Begin a stream of Anthropic's events."""
        self._events = Events()
        return super().begin([_rate_header(name, value) for name, value in headers], self._translated(body))

    def push(self, body: bytes) -> bool:
        """Send relayed events as Anthropic's events."""
        return super().push(self._translated(body))

    async def finish(self, body: bytes) -> None:
        """Send the last events, or a non-streamed answer unchanged."""
        await super().finish(self._translated(body))

    def _translated(self, body: bytes) -> bytes:
        return body if self._events is None else self._events.feed(body)

    async def deliver(self, answer: bytes, headers: Headers) -> None:
        """Send a non-streamed chat completion as a message."""
        await super().deliver(message(answer), headers)

    async def fail(self, error: AppError) -> None:
        """Answer with an error."""
        self.recording = None
        await self.respond(_status(error), self._error(error), error_headers(error))

    async def break_off(self, error: AppError) -> None:
        """End a stream with an ``error`` event."""
        self.recording = None
        await super().finish(b"event: error\ndata: " + self._error(error) + b"\n\n")

    def _error(self, error: AppError) -> bytes:
        status = _status(error)
        kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        shown = {
            "type": kind, "message": anthropic_message(error), "code": error.code, "param": error.param,
            "details": {"error_code": error.code},  # where Anthropic's SDK looks for it
        }  # fmt: skip
        return msgspec.json.encode({"type": "error", "error": shown, "request_id": self._request_id})


def _status(error: AppError) -> int:
    """Anthropic's status codes: 402 for a spent quota, 529 for missing capacity."""
    if error.code == "insufficient_quota":
        return 402
    return 529 if error.status == 503 else error.status


def anthropic_message(error: AppError) -> str:
    """Anthropic's words for the errors that its clients recognize by them."""
    if isinstance(error, ContextLengthExceeded):
        prompt, context = error.prompt_tokens, error.context_tokens
        if error.max_tokens is None:  # an answer has at least one token
            return f"prompt is too long: {prompt} tokens > {context - 1} maximum." + error.note
        exceeded = f"input length and `max_tokens` exceed context limit: {prompt} + {error.max_tokens} > {context}"
        return f"{exceeded}, decrease input length or `max_tokens` and try again." + error.note
    return f"invalid x-api-key: {error.message}" if error.code == "invalid_api_key" else error.message


def _rate_header(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """``x-ratelimit-reset-tokens: 6m0s`` is ``anthropic-ratelimit-tokens-reset`` with a time of day."""
    found = _RATE.fullmatch(name)
    if found is None:
        return name, value
    field, dimension = found.groups()
    shown = _moment(value) if field == b"reset" else value
    return b"anthropic-ratelimit-" + dimension + b"-" + field, shown


def _moment(duration: bytes) -> bytes:
    found = _DURATION.fullmatch(duration)
    if found is None:
        return duration
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    after = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    return (clock.now() + after).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
