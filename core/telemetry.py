"""Logs, metrics and probes of a process: one JSON line per event on standard output; ``/metrics``, ``/livez`` and
``/readyz`` on a port of its own.

That port fails open: when it is taken, that is logged and the process continues. Secrets and prompts are never logged.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
import structlog
from prometheus_client import make_wsgi_app
from structlog.typing import EventDict, WrappedLogger

from core.settings import TelemetrySettings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_CLIENT_TIMEOUT_S: Final = 10
_ENCODER: Final = msgspec.json.Encoder(enc_hook=repr)

_not_ready: Callable[[], str] = lambda: "it is starting"  # noqa: E731 - until the process says it


def set_up(process: str, settings: TelemetrySettings) -> None:
    """Configure structlog for this process and serve its metrics. Call once, at start."""

    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """A processor and no context variable, because new threads start with an empty context."""
        event["process"] = process
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name_process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=to_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level(settings.log_level)),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stdout.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stdout, format='{"level":"%(levelname)s","event":"%(message)s"}'
    )
    if settings.metrics_port:
        try:
            server = make_server(settings.metrics_host, settings.metrics_port, _answer, _Server, _Handler)
        except OSError as error:
            structlog.get_logger().warning("metrics port unavailable", port=settings.metrics_port, error=str(error))
        else:
            threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def is_logged(level: str, settings: TelemetrySettings) -> bool:
    """Whether a process with these settings writes lines of this level."""
    return _level(level) >= _level(settings.log_level)


def _level(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]


def to_json(event: object, **_options: object) -> bytes:
    """An event as one line of JSON. What JSON has no form for is written as Python shows it."""
    try:
        return _ENCODER.encode(event)
    except (ValueError, OverflowError, TypeError):  # half a surrogate pair, an integer above 64 bits, a key of no text
        return json.dumps(event, default=repr, skipkeys=True).encode()


def write_line(line: bytes) -> None:
    """Write a line that is an event as ``to_json`` makes it, for those that come too often for structlog."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def report_readiness(not_ready: Callable[[], str]) -> None:
    """From now on ``/readyz`` says why this process is not ready, or that it is when ``not_ready`` gives no reason. It
    is called in a thread of its own.
    """
    global _not_ready  # noqa: PLW0603 - a process has one state
    _not_ready = not_ready


def address_family(host: str) -> socket.AddressFamily:
    """The family of sockets that listen on ``host``: an IP address, or a name, which stands for an IPv4 address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = address_family(address[0])
        super().__init__(address, handler)


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S  # of each read from a client and of each write to it

    def handle(self) -> None:
        """Answer one request. A client that is too slow, or gone, gets no answer."""
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        """Log no request."""


_metrics: Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]] = make_wsgi_app()


def _answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/metrics":
        return _metrics(environ, start_response)
    status, text = {"/livez": ("200 OK", "alive"), "/readyz": ("200 OK", "ready")}.get(path, ("404 Not Found", path))
    if path == "/readyz" and (reason := _not_ready()):
        status, text = "503 Service Unavailable", reason
    start_response(status, [("content-type", "text/plain; charset=utf-8")])
    return [text.encode() + b"\n"]
