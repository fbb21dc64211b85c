"""ASGI middleware around every request: a request id on the response and in log lines, a metric, and a slot among the
concurrent requests (``request_slots``).

It wraps the whole application, because a 404 of the framework never reaches an inner middleware.
"""

import math
import time
from typing import Any, Final

import msgspec
import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from control_plane import metrics
from control_plane.errors import PROBLEM_JSON, problem_body
from control_plane.request_slots import RequestSlots
from core.errors import AppError, NotFound
from core.ids import new_id

_SECRET_PATHS: Final = ("/pay/", "/invitations/")
"""The rest of such an address is a secret."""


class RequestContext:
    """The middleware. Metrics and logs fail open. A request without a free slot gets 503 at once."""

    def __init__(self, app: ASGIApp, slots: RequestSlots) -> None:
        self._app = app
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        status, client = 500, scope.get("client")
        started = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                try:
                    with self._slots.acquire(client[0] if client else "") as state["slot"]:
                        if "\0" in scope["path"]:  # no name contains NUL, and Postgres refuses it as a parameter
                            raise NotFound("This path is not a route of this API.", code="not_found")
                        await self._app(scope, receive, send_with_id)
                except AppError as error:  # the application renders its own errors
                    await _refuse(scope["path"], send_with_id, request_id, error)
                seconds = time.monotonic() - started
                secret = next((prefix for prefix in _SECRET_PATHS if scope["path"].startswith(prefix)), None)
                path = f"{secret}…" if secret else scope["path"]
                structlog.get_logger().info(
                    "request", method=scope["method"], path=path, status=status, ms=round(seconds * 1000)
                )
        finally:
            metrics.REQUESTS.labels(scope["method"], f"{status // 100}xx").observe(time.monotonic() - started)


async def _refuse(path: str, send: Send, request_id: str, error: AppError) -> None:
    problem = problem_body(request_id, error.status, error.code, error.message, path=path)
    body = msgspec.json.encode(problem)
    headers = [(b"content-type", PROBLEM_JSON.encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
