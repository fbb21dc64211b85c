"""The process that decides what placers keep running: ``python -m control_plane fleet``. Several of them may run; one
decides at a time. Without any, everything that runs goes on.
"""

from redis import Redis

from control_plane.loop_process import run_until_signal
from control_plane.pools.settings import FleetSettings
from control_plane.pools.wanted import FleetDecisions
from core import db
from core.loops import Loop
from core.settings import PostgresSettings, RedisSettings

_ROUND_S = 2.0
_LOOK_S = 5.0  # its loop waits for time alone; this only notices a Postgres that does not answer
_STOP_S = 10.0
_TIMEOUT_S = 5.0


def run(postgres: PostgresSettings, redis: RedisSettings, settings: FleetSettings) -> int:
    """Decide until a signal. Returns the exit status."""
    engine = db.connect(postgres)
    with Redis.from_url(redis.redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as client:
        loop = Loop("fleet", FleetDecisions(engine, client, settings).run_once, _ROUND_S)
        return run_until_signal([loop], engine, look_s=_LOOK_S, stop_s=_STOP_S)
