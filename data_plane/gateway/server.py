"""Runs the gateway under uvicorn: one process, or several that share the port. After SIGTERM, running requests finish.

The kernel's limits on connections are set on the listening socket, and every accepted connection inherits them.
"""

import contextlib
import os
import signal
import socket

import uvicorn
from litestar import Litestar
from uvicorn.supervisors import Multiprocess

from core import telemetry
from core.struct_types import complete_struct_types
from data_plane.gateway.app import create_app
from data_plane.gateway.settings import GatewaySettings

_FACTORY = "data_plane.gateway.server:create_worker_app"


def serve(settings: GatewaySettings, *, workers: int) -> None:
    """Serve until SIGTERM or SIGINT. Then running requests finish and settle, and the process exits with status 0."""
    signal.signal(signal.SIGTERM, _leave)
    config = uvicorn.Config(
        _FACTORY,
        factory=True,
        workers=workers,
        host=settings.gateway_host,
        port=settings.gateway_port,
        loop="core.event_loop:EventLoop",
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
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises SIGINT again after its shutdown
        if workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            uvicorn.Server(config).run(sockets=[listening])


def bound_connections(listening: socket.socket, settings: GatewaySettings) -> None:
    """Make the kernel close connections to clients that have vanished, and buffer little for clients that do not read.

    A client whose machine or network has gone sends no FIN. Unacknowledged data ends the connection; while no data is
    in flight, keepalive probes do (tcp(7): TCP_USER_TIMEOUT takes precedence over the number of probes).
    """
    silent_s = settings.client_tcp_timeout_s
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_s * 1000)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, silent_s // 2))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, silent_s // 4))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.client_send_buffer_bytes)


def _leave(_number: int, _frame: object) -> None:
    """Exit with status 0. Uvicorn handles SIGTERM itself and raises it again after its shutdown; that is no failure."""
    raise SystemExit(0)


def create_worker_app() -> Litestar:
    """The application of one process, with its own logs and metrics. Worker k serves metrics on ``metrics_port`` +
    k.
    """
    os.environ.setdefault(
        "TOKENIZERS_PARALLELISM", "false"
    )  # prompts are counted one by one, so more threads would not help
    settings = GatewaySettings()
    telemetry.set_up("gateway", settings.model_copy(update={"metrics_port": _free_from(settings)}))
    complete_struct_types()
    return create_app(settings)


_PORTS_TRIED = 64


def _free_from(settings: GatewaySettings) -> int:
    """The first port from ``metrics_port`` on that no other worker uses; 0 stays 0."""
    port = settings.metrics_port
    if port == 0:
        return 0
    for candidate in range(port, min(port + _PORTS_TRIED, 65536)):
        with socket.socket(telemetry.address_family(settings.metrics_host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.metrics_host, candidate))
            except OSError:
                continue
            return candidate
    return port
