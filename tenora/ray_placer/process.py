"""The placer's process: rounds until a signal. What runs on the cluster goes on without it."""

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from redis import Redis

from core import telemetry
from tenora.ray_placer.placer import RayPlacer
from tenora.ray_placer.settings import RayPlacerSettings

_ROUND_S: Final = 2.0
_PAUSE_MAX_S: Final = 30.0
_TIMEOUT_S: Final = 5.0
_log: Final = structlog.get_logger()


def run(settings: RayPlacerSettings, command: Sequence[str]) -> None:
    """Place on the cluster of ``settings`` until SIGTERM or SIGINT. A round that fails is repeated after a pause."""
    import ray
    from ray import serve

    telemetry.set_up("ray-placer", settings)
    cluster = ray.init(address=settings.ray_address, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    stop, trouble = threading.Event(), "it has placed nothing yet"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    telemetry.report_readiness(lambda: trouble)
    pause_s = _ROUND_S
    with Redis.from_url(settings.redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as redis:
        placer = RayPlacer(
            redis, settings, command, dashboard_url=f"http://{cluster.dashboard_url}", token=auth_headers
        )
        while not stop.wait(pause_s):
            try:
                placer.run_once()
            except Exception as error:  # noqa: BLE001 - a store, Ray's head or Serve's controller may be away
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                trouble = f"its last round failed: {type(error).__name__}"
                _log.warning("round failed", pause_s=pause_s, error=repr(error)[:500])
            else:
                pause_s, trouble = _ROUND_S, ""


def auth_headers() -> Mapping[str, str]:
    """The token of a cluster with token authentication, where Ray itself looks for it; nothing without one."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if not token and file.is_file():
        token = file.read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
