"""The door of the engine: an ASGI middleware that lets through the few routes gateways and the agent use, and only with
the engine's key. vLLM's own check covers some path prefixes only and leaves others open to anyone who can connect.

It also adds one route: aborting a running request by id. vLLM then ends that request's stream in the ordinary way, with
its final counts, so a caller who hung up can be metered for exactly what was produced. vLLM 0.32 has such a route, but
only together with others that accept raw tensors. The door fails closed.
"""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from core.settings import EngineKeySettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ABORT_PATH: Final = "/inference/v1/abort_requests"
OPEN_ROUTES: Final = frozenset({("GET", "/health"), ("GET", "/metrics")})
KEYED_ROUTES: Final = frozenset(
    {("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", ABORT_PATH)}
)
_ABORT_BODY_MAX_BYTES: Final = 16_384
_ABORT_IDS_MAX: Final = 64


class EngineDoor:
    """Outermost middleware of vLLM's API server; loaded by its ``--middleware`` option."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._key = _digest(EngineKeySettings().engine_key.get_secret_value())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        route = (scope.get("method", ""), scope["path"])
        if scope["type"] != "http" or route not in OPEN_ROUTES | KEYED_ROUTES:
            return await _answer(send, 404, {"error": "not found"})
        if route in KEYED_ROUTES and not hmac.compare_digest(_digest(_bearer(scope)), self._key):
            return await _answer(send, 401, {"error": "the engine's key is missing or wrong"})
        if route[1] == ABORT_PATH:
            return await self._abort(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``{"request_ids": [...]}`` with the ids that responses carry. Unknown and finished ids are ignored."""
        request_ids = _request_ids(await _body(receive))
        if request_ids is None:
            return await _answer(send, 400, {"error": f"request_ids must be a list of 1 to {_ABORT_IDS_MAX} strings"})
        await scope["app"].state.engine_client.abort(request_ids)
        return await _answer(send, 200, {})


def _request_ids(body: bytes) -> list[str] | None:
    try:
        ids = json.loads(body)["request_ids"]
    except (ValueError, KeyError, TypeError):
        return None
    if (
        not isinstance(ids, list)
        or not 1 <= len(ids) <= _ABORT_IDS_MAX
        or not all(isinstance(each, str) for each in ids)
    ):
        return None
    return ids


def _bearer(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization" and value.startswith(b"Bearer "):
            return str(value[7:].decode("latin-1"))
    return ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= _ABORT_BODY_MAX_BYTES:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
    return b""


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})
