"""Serves the application with uvicorn. What it serves is ``app``."""

import uvicorn

from control_plane.app import create_app
from control_plane.settings import ControlSettings


def serve(settings: ControlSettings) -> None:
    """Serve until SIGTERM, then finish what is in work within ``control_drain_s``."""
    server(settings).run()


def server(settings: ControlSettings) -> uvicorn.Server:
    """A server that is configured and not yet started."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.web.control_host,
            port=settings.web.control_port,
            loop="uvloop",
            http="httptools",
            access_log=False,  # request_context logs each request with its id
            log_config=None,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=settings.web.control_drain_s,
            backlog=512,
        )
    )
