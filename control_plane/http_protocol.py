"""A client connection of the control plane: the limits of ``core.http_protocol``, with errors as problem details."""

from typing import ClassVar

import msgspec
from uvicorn.config import Config

from control_plane import metrics
from control_plane.errors import PROBLEM_JSON, problem_body
from control_plane.settings import WebSettings
from core.errors import AppError
from core.http_protocol import Headers, HttpLimits, LimitedHttpProtocol
from core.ids import new_id


class ControlProtocol(LimitedHttpProtocol):
    """One client connection. ``protocol_for`` makes the class of one server."""

    limits: ClassVar[HttpLimits]

    def limits_of(self, config: Config) -> HttpLimits:  # noqa: ARG002 - the gateway's are in its configuration
        return self.limits

    def refusal(self, error: AppError) -> tuple[Headers, bytes]:
        metrics.REFUSED_CONNECTIONS.labels(error.code).inc()
        request_id = new_id("req")
        headers = [(b"content-type", PROBLEM_JSON.encode()), (b"x-request-id", request_id.encode())]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        return headers, msgspec.json.encode(problem_body(request_id, error.status, error.code, error.message))


def protocol_for(settings: WebSettings) -> type[ControlProtocol]:
    """The protocol with the limits of these settings, as uvicorn's ``http``."""
    limits = HttpLimits(
        headers_max_bytes=settings.control_headers_max_bytes,
        headers_s=settings.control_headers_s,
        body_s=settings.control_body_s,
        connections_max=settings.control_connections_max,
        connections_per_address_max=settings.control_connections_per_address_max,
    )
    return type("BoundControlProtocol", (ControlProtocol,), {"limits": limits})
