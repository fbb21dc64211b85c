"""Runs the gateway under uvicorn: one process, or several that share the port. SIGTERM lets running requests end.

What the kernel is to do with connections stands on the socket that listens, of which every accepted one inherits it.
"""

import contextlib
import os
import signal
import socket

import uvicorn
from litestar import Litestar
from uvicorn.supervisors import Multiprocess

from core import telemetry
from data_plane.gateway.app import create_app
from data_plane.gateway.settings import GatewaySettings

_FACTORY = "data_plane.gateway.server:create_worker_app"


def serve(settings: GatewaySettings, *, workers: int) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end, settle them all, and leave with status 0."""
    signal.signal(signal.SIGTERM, _leave)
    config = uvicorn.Config(
        _FACTORY,
        factory=True,
        workers=workers,
        host=settings.gateway_host,
        port=settings.gateway_port,
        loop="uvloop",
        http="data_plane.gateway.http_protocol:GatewayProtocol",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=settings.gateway_backlog,
        timeout_keep_alive=settings.gateway_keepalive_s,
        timeout_graceful_shutdown=settings.gateway_drain_s,
    )
    listening = config.bind_socket()
    bound_connections(listening, settings)
    with contextlib.suppress(KeyboardInterrupt):  # SIGINT, raised again once all is done
        if workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            uvicorn.Server(config).run(sockets=[listening])


def bound_connections(listening: socket.socket, settings: GatewaySettings) -> None:
    """Have the kernel give up callers who are not there any more, and keep little of what they do not read.

    A caller whose machine or network has gone says no goodbye. What it does not acknowledge ends the connection; where
    nothing is on its way to it, the kernel asks whether it is there (tcp(7): TCP_USER_TIMEOUT goes before the number of
    such questions).
    """
    silent_s = settings.client_tcp_timeout_s
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_s * 1000)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, silent_s // 2))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, silent_s // 4))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.client_send_buffer_bytes)


def _leave(_number: int, _frame: object) -> None:
    """Uvicorn handles the signal itself, and raises it again once all is done: an end, and no failure."""
    raise SystemExit(0)


def create_worker_app() -> Litestar:
    """One process's application, with logs and metrics of its own: worker k serves metrics on ``metrics_port`` + k."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # prompts come one by one: more threads only take turns
    settings = GatewaySettings()
    telemetry.set_up("gateway", settings.model_copy(update={"metrics_port": _free_from(settings.metrics_port)}))
    return create_app(settings)


_PORTS_TRIED = 64


def _free_from(port: int) -> int:
    """The first port from here on that no other worker has; 0 stays 0."""
    if port == 0:
        return 0
    for candidate in range(port, min(port + _PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    return port
