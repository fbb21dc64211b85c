"""Builds the parts that keep usage from being lost: journal, recovery, settler, checkpoints and lease sweeper.

app.py runs them. The logic is in the files beside this one.
"""

import re
from collections.abc import Coroutine
from typing import Any

from redis.asyncio.connection import parse_url

from data_plane.gateway.quota.reservation import Reservations
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.checkpoints import Checkpoints
from data_plane.gateway.settlement.journal import Journal
from data_plane.gateway.settlement.journal_recovery import JournalRecovery
from data_plane.gateway.settlement.lease_sweeper import LeaseSweeper
from data_plane.gateway.settlement.redis_data_loss import RedisDataLossDetector
from data_plane.gateway.settlement.replay_buffer import ReplayBuffer
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.redis_connection import RedisConnection


class SettlementRuntime:
    """The settlement parts of one process. Requests use ``settler`` only."""

    def __init__(
        self,
        settings: GatewaySettings,
        redis: RedisConnection,
        reservations: Reservations,
        clock: RedisClock,
        gateway_id: str,
    ) -> None:
        self._settings = settings
        self._journal = Journal(
            settings.journal_dir / redis_name(settings.redis_url),
            gateway_id,
            segment_max_bytes=settings.journal_segment_max_bytes,
            bytes_max=settings.journal_max_bytes,
            group_s=settings.journal_group_ms / 1000,
        )
        self.settler = Settler(
            reservations,
            self._journal,
            RedisDataLossDetector(redis, gateway_id, ttl_s=settings.settled_marker_s),
            ReplayBuffer(self._journal, retention_s=settings.replay_buffer_s, count_max=settings.replay_buffer_max),
            clock,
            deadline_s=settings.settlement_deadline_s,
            retry_s=settings.settlement_retry_s,
            marker_s=settings.settled_marker_s,
            backlog_max=settings.settlement_backlog_max,
        )
        self._recovery = JournalRecovery(self._journal, self.settler, every_s=settings.journal_recovery_s)
        self._checkpoints = Checkpoints(
            self.settler.held,
            self.settler.running,
            reservations,
            every_s=settings.checkpoint_s,
            tokens=settings.checkpoint_tokens,
            renewal_s=settings.lease_renewal_s,
        )
        self._sweeper = LeaseSweeper(
            redis,
            reservations,
            every_s=settings.sweep_s,
            tenants_max=settings.sweep_tenants_max,
            grace_s=2 * settings.lease_renewal_s,
        )

    def open(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Open the journal. Returns the loops, by name, that the caller runs until ``close``."""
        self._journal.open()
        return {
            "journal": self._journal.run_forever(),
            "journal recovery": self._recovery.run_forever(),
            "checkpoints": self._checkpoints.run_forever(),
            "sweeper": self._sweeper.run_forever(),
            "backlog": self.settler.run_forever(),
        }

    async def drain(self) -> None:
        """Wait until every request has settled, or until the drain time is over."""
        await self.settler.drain(self._settings.settlement_drain_s)

    async def close(self) -> None:
        """Close the journal. Call it after the loops have stopped."""
        await self._journal.close()


def redis_name(url: str) -> str:
    """The name of the journal folder for this Redis, so that a settlement never goes to another Redis."""
    options = parse_url(url)
    where = options.get("path") or f"{options.get('host', 'localhost')}-{options.get('port', 6379)}"
    return re.sub(r"[^A-Za-z0-9.-]", "_", f"{where}-{options.get('db', 0)}")
