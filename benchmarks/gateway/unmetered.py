"""The gateway with its metering taken out, to tell what metering costs: each quota script is asked once, its answer is
repeated without asking Redis again, and nothing is journalled. Keys, counting, placement and relaying stay as they are.

For benchmarks alone: such a gateway enforces no limit and bills nobody.
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


class RepeatingLine(RedisConnection):
    """Answers a script as Redis did the first time."""

    def __init__(self, url: str, *, connect_s: float, stalled_s: float, pending_max: int) -> None:
        super().__init__(url, connect_s=connect_s, stalled_s=stalled_s, pending_max=pending_max)
        self._answers: dict[Argument, Any] = {}  # by the script's digest

    async def call(self, *command: Argument, due: float = math.inf) -> Any:  # a reply is whatever the server said
        """The first reply to this script, for ever. Raises redis.RedisError until there is one."""
        if command[0] != "EVALSHA":
            return await super().call(*command, due=due)
        if command[1] not in self._answers:
            self._answers[command[1]] = await super().call(*command)
        return self._answers[command[1]]


class NoJournal(Journal):
    """Takes nothing."""

    def append(self, settlement: Settlement) -> None:
        """Not taken."""

    def done(self, request_id: str) -> None:
        """It never held it."""


def create_worker_app() -> Litestar:
    """The application, as the gateway's server builds it."""
    vars(app).update(RedisConnection=RepeatingLine, Journal=NoJournal)  # what app.py builds itself and is not handed
    return app.create_app(GatewaySettings())


def main() -> None:
    """Serve as the gateway does, with its settings."""
    settings = GatewaySettings()
    uvicorn.run(
        create_worker_app(), host=settings.gateway_host, port=settings.gateway_port, loop="uvloop",
        http="data_plane.gateway.http_protocol:GatewayProtocol", ws="none", lifespan="on", access_log=False,
        log_level="warning", server_header=False, proxy_headers=False, backlog=settings.gateway_backlog,
        limit_concurrency=settings.gateway_connections_max, timeout_keep_alive=settings.gateway_keepalive_s,
    )  # fmt: skip


if __name__ == "__main__":
    main()
