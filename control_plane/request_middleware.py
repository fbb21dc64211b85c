"""ASGI middleware around every request: a request id on the response and in log lines, a metric, and a limit on
concurrent requests.

It wraps the whole application, because a 404 of the framework never reaches an inner middleware.
"""

import time
from typing import Any

import msgspec
import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from control_plane import metrics
from control_plane.errors import PROBLEM_JSON, problem_body
from core.ids import new_id


class RequestContext:
    """The middleware. Metrics and logs fail open. More than ``requests_max`` concurrent requests get 503 at once."""

    def __init__(self, app: ASGIApp, *, requests_max: int) -> None:
        self._app = app
        self._requests_max = requests_max
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 500
        started = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        self._running += 1
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                if self._running > self._requests_max:
                    await _refuse(
                        send_with_id,
                        request_id,
                        503,
                        "overloaded",
                        "Too many concurrent requests. Try again in a few seconds.",
                    )
                elif "\0" in scope["path"]:  # no name contains NUL, and Postgres refuses it as a parameter
                    await _refuse(send_with_id, request_id, 404, "not_found", "This path is not a route of this API.")
                else:
                    await self._app(scope, receive, send_with_id)
                seconds = time.monotonic() - started
                structlog.get_logger().info(
                    "request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000)
                )
        finally:
            self._running -= 1
            metrics.REQUESTS.labels(scope["method"], f"{status // 100}xx").observe(time.monotonic() - started)


async def _refuse(send: Send, request_id: str, status: int, code: str, detail: str) -> None:
    body = msgspec.json.encode(problem_body(request_id, status, code, detail))
    headers = [(b"content-type", PROBLEM_JSON.encode()), (b"retry-after", b"1")][: 2 if status == 503 else 1]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
