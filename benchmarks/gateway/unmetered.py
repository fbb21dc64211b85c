"""The gateway without its metering, to measure the cost of metering.

Each quota script runs once; its reply is then repeated without another call to Redis, and nothing is journaled. Keys,
token counting, placement and relaying are unchanged. For benchmarks only: this gateway enforces no limit and records
no usage.
"""

import math
from typing import Any

import uvicorn
from litestar import Litestar

from data_plane.gateway import app
from data_plane.gateway.quota.reservation import Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.journal import Journal
from data_plane.gateway.state.redis_connection import Argument, RedisConnection


class RepeatingConnection(RedisConnection):
    """A Redis connection that repeats the first reply to each script."""

    def __init__(self, url: str, *, connect_s: float, stalled_s: float, pending_max: int) -> None:
        super().__init__(url, connect_s=connect_s, stalled_s=stalled_s, pending_max=pending_max)
        self._answers: dict[Argument, Any] = {}  # by the script's digest

    async def call(self, *command: Argument, due: float = math.inf) -> Any:  # a reply is whatever the server said
        """Return the first reply to this script on every call. Raises redis.RedisError until there is one."""
        if command[0] != "EVALSHA":
            return await super().call(*command, due=due)
        if command[1] not in self._answers:
            self._answers[command[1]] = await super().call(*command)
        return self._answers[command[1]]


class NoJournal(Journal):
    """A journal that stores nothing."""

    def append(self, settlement: Settlement) -> None:
        """Discard the settlement."""

    def done(self, request_id: str) -> None:
        """Do nothing: the journal is always empty."""


def create_worker_app() -> Litestar:
    """Build the application as the gateway's server does."""
    # app.py builds these two itself and takes no argument for them.
    vars(app).update(RedisConnection=RepeatingConnection, Journal=NoJournal)
    return app.create_app(GatewaySettings())


def main() -> None:
    """Serve with the gateway's settings."""
    settings = GatewaySettings()
    uvicorn.run(
        create_worker_app(), host=settings.gateway_host, port=settings.gateway_port, loop="uvloop",
        http="data_plane.gateway.http_protocol:GatewayProtocol", ws="none", lifespan="on", access_log=False,
        log_level="warning", server_header=False, proxy_headers=False, backlog=settings.gateway_backlog,
        limit_concurrency=settings.gateway_connections_max, timeout_keep_alive=settings.gateway_keepalive_s,
    )  # fmt: skip


if __name__ == "__main__":
    main()
