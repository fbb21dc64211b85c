"""Writes the usage of running requests to Redis and renews their leases: after each ``checkpoint_s``, and after each
``checkpoint_tokens`` of a request.

If this process dies, each request is settled by its last checkpoint (``quota/scripts/prelude.lua``). Fails open: while
Redis is unreachable, requests continue, and only their leases age.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from redis.exceptions import RedisError

from core.errors import Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Checkpoint, Reservations
from data_plane.gateway.settlement.settler import Hold, Running

_log = structlog.get_logger()
_AT_ONCE_MAX = 200  # requests in one turn of the event loop; all other tasks wait for the turn
_LOOKS = 5  # checks of each request between two of its checkpoints


class Checkpoints:
    """Writes checkpoints and renews the leases of live holds."""

    def __init__(
        self,
        held: Callable[[], Mapping[str, Hold]],
        running: Mapping[str, Running],
        reservations: Reservations,
        *,
        every_s: float,
        tokens: int,
        renewal_s: float,
    ) -> None:
        self._held = held
        self._running = running
        self._reservations = reservations
        self._every_s = every_s
        self._tokens = tokens
        self._renewal_s = renewal_s

    async def run_forever(self) -> None:
        """Write due checkpoints periodically until cancelled."""
        reachable = True
        while True:
            await asyncio.sleep(self._every_s / _LOOKS)
            try:
                await self.run_once()
                reachable = True
            except (RedisError, OSError) as error:
                if reachable:
                    _log.warning("lease renewal failed", held=len(self._held()), error=repr(error))
                reachable = False

    async def run_once(self) -> None:
        """Write the checkpoints that are due now. Raises redis.RedisError; unwritten checkpoints stay due."""
        holds = list(self._held().values())
        for first in range(0, len(holds), _AT_ONCE_MAX):
            await self._write(holds[first : first + _AT_ONCE_MAX])
            await asyncio.sleep(0)

    async def _write(self, holds: Sequence[Hold]) -> None:
        now = time.monotonic()
        due: list[tuple[Hold, Checkpoint | None]] = []
        groups: dict[tuple[str, str], dict[str, Checkpoint | None]] = {}
        for hold in holds:
            is_due, checkpoint = self._due(hold, now)
            if is_due:
                due.append((hold, checkpoint))
                groups.setdefault((hold.tenant_id, hold.replica_id), {})[hold.request_id] = checkpoint
        if not due:
            return
        renewed = await self._reservations.renew(groups)
        for hold, checkpoint in due:
            hold.renewed_at = now
            if checkpoint is not None:
                hold.checkpoint_at = now
                hold.checkpoint_tokens = checkpoint.event.input_tokens + checkpoint.event.output_tokens
                metrics.CHECKPOINTS.inc()
        if renewed.missing:
            metrics.LEASES_MISSING.inc(renewed.missing)
            _log.info(
                "leases missing at renewal",
                missing=renewed.missing,
                expired=renewed.expired,
            )
        held = self._held() if renewed.expired or renewed.unknown else {}
        for request_id in renewed.expired:
            self._cut_off(held.get(request_id))
        await asyncio.gather(*(self._restore(held.get(request_id)) for request_id in renewed.unknown))

    async def _restore(self, hold: Hold | None) -> None:
        """After Redis lost its data: reserve again for a running request, and write its checkpoint again."""
        if hold is None or hold.taken is None or hold.request_id not in self._running:
            return
        if await self._reservations.restore(hold.request_id, hold.taken, replica_id=hold.replica_id):
            hold.checkpoint_at, hold.checkpoint_tokens = 0.0, 0
            metrics.RESERVATIONS_RESTORED.inc()

    def _cut_off(self, hold: Hold | None) -> None:
        """End a request whose lease expired: another request may have taken its holds."""
        running = None if hold is None else self._running.get(hold.request_id)
        if hold is not None and running is not None:
            metrics.RESERVATIONS_LOST.inc()
            _log.warning("request cut off: lease expired", request_id=hold.request_id)
            running.cut_off(
                Unavailable(
                    "The response was cut off: quotas were unreachable for too long. The tokens sent are billed.",
                    code="reservation_lost",
                    retry_after_s=1,
                )
            )

    def _due(self, hold: Hold, now: float) -> tuple[bool, Checkpoint | None]:
        """Whether a hold is due for a write, and its checkpoint where its usage has grown."""
        renew = now - hold.renewed_at >= self._renewal_s
        running = self._running.get(hold.request_id)
        if running is None:
            return renew, None
        try:
            return self._grown(hold, running, now) or (renew, None)
        except Exception:  # noqa: BLE001 - whatever the error, other requests need their leases
            if renew:  # log at each renewal, not at each check
                _log.exception("checkpoint failed", request_id=hold.request_id)
            return renew, None

    def _grown(self, hold: Hold, running: Running, now: float) -> tuple[bool, Checkpoint | None] | None:
        tokens = running.tokens()
        new = tokens - hold.checkpoint_tokens
        # One check early, so that a checkpoint is never older than ``every_s``.
        aged = now - hold.checkpoint_at >= self._every_s * (_LOOKS - 1) / _LOOKS
        if new <= 0 or not (aged or new >= self._tokens or hold.checkpoint_tokens == 0):
            return None
        return True, running.checkpoint()
