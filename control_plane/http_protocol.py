"""A client connection of the control plane: the limits of ``core.http_protocol``, with errors as problem details, and
more time for the bodies of files.
"""

from typing import ClassVar

import msgspec
from uvicorn.config import Config

from control_plane import metrics
from control_plane.errors import PROBLEM_JSON, problem_body
from control_plane.settings import WebSettings
from core.errors import AppError, RequestTimeout
from core.http_protocol import Headers, HttpLimits, LimitedHttpProtocol
from core.ids import new_id


class ControlProtocol(LimitedHttpProtocol):
    """One client connection. ``protocol_for`` makes the class of one server."""

    limits: ClassVar[HttpLimits]
    file_body_s: ClassVar[float]

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._body_timer is not None and self.url.startswith(b"/v1/files"):  # these bodies are large
            self._body_timer.cancel()
            self._body_timer = self.loop.call_later(self.file_body_s, self._file_is_late)

    def _file_is_late(self) -> None:
        self._body_timer = None
        self.refuse(RequestTimeout(f"The file did not arrive within {self.file_body_s:g} s.", retryable=True))

    def limits_of(self, config: Config) -> HttpLimits:  # noqa: ARG002 - the gateway's are in its configuration
        return self.limits

    def refusal(self, error: AppError) -> tuple[Headers, bytes]:
        metrics.REFUSED_CONNECTIONS.labels(error.code).inc()
        request_id = new_id("req")
        headers = [(b"content-type", PROBLEM_JSON.encode()), (b"x-request-id", request_id.encode())]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        path = getattr(self, "url", b"").decode("latin-1")  # uvicorn sets it with the first request
        problem = problem_body(request_id, error.status, error.code, error.message, path=path)
        return headers, msgspec.json.encode(problem)


def protocol_for(settings: WebSettings, *, file_body_s: float) -> type[ControlProtocol]:
    """The protocol with the limits of these settings, as uvicorn's ``http``."""
    limits = HttpLimits(
        headers_max_bytes=settings.control_headers_max_bytes,
        headers_s=settings.control_headers_s,
        body_s=settings.control_body_s,
        connections_max=settings.control_connections_max,
        connections_per_address_max=settings.control_connections_per_address_max,
    )
    return type("BoundControlProtocol", (ControlProtocol,), {"limits": limits, "file_body_s": file_body_s})
