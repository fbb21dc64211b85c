"""What running requests have used so far, written to Redis with their leases: each second, or each 64 tokens.

Should this process die, each of them is settled by its last checkpoint (``quota/scripts/holds.lua``). Fails open: while
Redis is away requests run on, and only their leases age.
"""

import asyncio
import time
from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError

from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Checkpoint, Reservations
from data_plane.gateway.settling.settlement import Hold

_log = structlog.get_logger()
_LOOKS = 5  # at every request, in the time between two of its checkpoints


class Checkpoints:
    """Writes checkpoints and renews leases of the holds that are live."""

    def __init__(
        self,
        live: Mapping[str, Hold],
        reservations: Reservations,
        *,
        every_s: float,
        tokens: int,
        renewal_s: float,
    ) -> None:
        self._live = live
        self._reservations = reservations
        self._every_s = every_s
        self._tokens = tokens
        self._renewal_s = renewal_s

    async def follow(self) -> None:
        """Write what is due again and again, for ever."""
        reachable = True
        while True:
            await asyncio.sleep(self._every_s / _LOOKS)
            try:
                await self.write()
                reachable = True
            except (RedisError, OSError) as error:
                if reachable:
                    _log.warning("leases cannot be renewed", live=len(self._live), error=repr(error))
                reachable = False

    async def write(self) -> None:
        """Write once what is due now. Raises redis.RedisError; what was not written stays due."""
        now = time.monotonic()
        due: list[tuple[Hold, Checkpoint | None]] = []
        groups: dict[tuple[str, str], dict[str, Checkpoint | None]] = {}
        for hold in self._live.values():
            is_due, checkpoint = self._due(hold, now)
            if is_due:
                due.append((hold, checkpoint))
                groups.setdefault((hold.tenant_id, hold.replica_id), {})[hold.request_id] = checkpoint
        if not due:
            return
        missing = await self._reservations.renew(groups)
        for hold, checkpoint in due:
            hold.renewed_at = now
            if checkpoint is not None:
                hold.checkpoint_at = now
                hold.checkpoint_tokens = checkpoint.event.input_tokens + checkpoint.event.output_tokens
                metrics.checkpoints.inc()
        if missing:
            metrics.leases_missing.inc(missing)
            _log.info("leases were gone when they were to be renewed: settled meanwhile, or run out", missing=missing)

    def _due(self, hold: Hold, now: float) -> tuple[bool, Checkpoint | None]:
        """Whether something is to be written for a hold, and its checkpoint where that has grown."""
        renew = now - hold.renewed_at >= self._renewal_s
        if hold.running is None:
            return renew, None
        tokens = hold.running.tokens()
        new = tokens - hold.checkpoint_tokens
        # One look before its time is up, so that it is never older than that.
        aged = now - hold.checkpoint_at >= self._every_s * (_LOOKS - 1) / _LOOKS
        if new <= 0 or not (aged or new >= self._tokens or hold.checkpoint_tokens == 0):
            return renew, None
        return True, hold.running.checkpoint()
