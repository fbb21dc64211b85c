"""The ASGI middleware in front of the engine: it passes only the few routes that gateways and the agent use, and only
with the engine's key. vLLM's own key check covers some path prefixes and leaves others open to anyone who connects.

``adapter_requests`` handles requests for adapters, ``control_routes`` the routes under ``/tenora/v1``. This module adds
one more route: abort a running request by id (``aborts``). vLLM then ends that request's stream in the ordinary way,
with its final token counts, so that a caller who disconnected can be metered for exactly what was computed. vLLM 0.32
has such a route, but only together with routes that accept raw tensors. The middleware fails closed.
"""

import hashlib
import hmac
import json
from typing import Final

from data_plane.engine import engine_ids
from data_plane.engine.middleware import control_routes
from data_plane.engine.middleware.adapter_requests import AdapterRequests
from data_plane.engine.middleware.asgi import (
    App,
    CallerDisconnected,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    send_json,
)
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.settings import MiddlewareSettings

ABORT_PATH: Final = "/inference/v1/abort_requests"
OPEN_ROUTES: Final = frozenset({("GET", "/health"), ("GET", "/metrics")})
GENERATING_ROUTES: Final = frozenset(("POST", path) for path in engine_ids.BY_PATH)
KEYED_ROUTES: Final = GENERATING_ROUTES | control_routes.ROUTES | {("GET", "/v1/models"), ("POST", ABORT_PATH)}
_ABORT_BODY_MAX_BYTES: Final = 16_384
_ABORT_IDS_MAX: Final = 64
_BEARER: Final = "Bearer "


class EngineMiddleware:
    """Outermost middleware of vLLM's API server. vLLM's ``--middleware`` option loads it without ``adapters``; it then
    uses the disk cache of the resolver that the plugin registered, and names tokens in log-probabilities.
    """

    def __init__(self, app: App, adapters: AdapterRequests | None = None) -> None:
        self._app = app
        settings = MiddlewareSettings()
        self._current = _BEARER + settings.engine_key.get_secret_value()
        keys = (settings.engine_key, settings.engine_key_previous)
        self._keys = [_digest(key.get_secret_value()) for key in keys if key is not None]
        self._adapters = adapters or _in_vllm(settings)
        self._routes = control_routes.ControlRoutes(self._adapters)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope.get("method", ""), scope.get("path", ""))
        if scope["type"] == "lifespan" or (scope["type"] == "http" and route in OPEN_ROUTES):
            await self._app(scope, receive, send)
        elif scope["type"] != "http" or route not in KEYED_ROUTES:
            await send_json(send, 404, {"error": "not found"})
        elif not self._has_key(scope):
            await send_json(send, 401, {"error": "the engine key is missing or wrong"})
        else:
            _show_key(scope, self._current)
            self._routes.start_sweep(scope["app"].state)
            await self._pass_on(route, scope, receive, send)

    async def _pass_on(self, route: tuple[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        if route in GENERATING_ROUTES:
            await self._adapters.generate(self._app, scope, receive, send)
        elif route in control_routes.ROUTES:
            await self._routes(scope, receive, send)
        elif route == ("POST", ABORT_PATH):
            await self._abort(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Abort ``{"request_ids": [...]}``, the ids that responses carry. Unknown and finished ids are ignored."""
        try:
            request_ids = _request_ids(await read_body(receive, _ABORT_BODY_MAX_BYTES) or b"")
        except CallerDisconnected:
            return
        if request_ids is None:
            await send_json(send, 400, {"error": f"request_ids must be a list of 1 to {_ABORT_IDS_MAX} strings"})
        else:
            await self._adapters.aborts.abort(request_ids, VllmFrontend(scope["app"].state))
            await send_json(send, 200, {})

    def _has_key(self, scope: Scope) -> bool:
        key = (header(scope, b"authorization") or "").removeprefix(_BEARER)
        shown = _digest(key)
        return any(hmac.compare_digest(shown, known) for known in self._keys)


def _show_key(scope: Scope, authorization: str) -> None:
    """Give vLLM, which knows one key, the current one: the caller may have shown the previous one."""
    if header(scope, b"authorization") != authorization:
        others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        scope["headers"] = [*others, (b"authorization", authorization.encode())]


def _in_vllm(settings: MiddlewareSettings) -> AdapterRequests:
    from adapters import vllm_resolver  # imports vLLM, which is loaded already when vLLM builds its middleware
    from data_plane.engine import logprob_tokens

    logprob_tokens.install()
    return AdapterRequests(settings, vllm_resolver.registered_cache())


def _request_ids(content: bytes) -> list[str] | None:
    try:
        ids = json.loads(content)["request_ids"]
    except (ValueError, KeyError, TypeError):
        return None
    if (
        not isinstance(ids, list)
        or not 1 <= len(ids) <= _ABORT_IDS_MAX
        or not all(isinstance(each, str) for each in ids)
    ):
        return None
    return ids


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
