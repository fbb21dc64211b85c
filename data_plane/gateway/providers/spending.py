"""What outside providers may cost in a UTC month, counted in Redis by all gateways together: a request takes the most
that it may cost, and gives back what it did not cost. If its cost is unknown, all of it stays.

Fails closed: while Redis does not answer, a provider with a ceiling gets no request. A gateway that dies leaves its
holds in the month's count, which is then too high. The ledger has the exact costs.
"""

import time
from typing import Final

import structlog
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.routes import ProviderRoute
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.state.redis_connection import RedisConnection
from data_plane.gateway.upstream.engine_client import LocalShortage

_log = structlog.get_logger()
_KEPT_S: Final = 40 * 86_400


class ProviderSpending:
    """The months' counts of all providers that have a ceiling."""

    def __init__(self, connection: RedisConnection, clock: RedisClock, *, deadline_s: float) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_s = deadline_s

    async def take(self, provider: ProviderRoute, nanos: int) -> str:
        """Take this much of the provider's month, and return the month's key, "" where there is no ceiling. Raises
        LocalShortage where the ceiling does not allow it: the provider did not cause it.
        """
        ceiling = provider.spend_nanos_per_month
        if ceiling is None:
            return ""
        key = redis_keys.provider_spending(provider.provider_id, self._clock.now_ms())
        try:
            spent = await self._call("INCRBY", key, nanos)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise LocalShortage(
                "What the model's provider may cost cannot be checked now; try again shortly.",
                code="quota_unavailable",
                retry_after_s=1,
            ) from error
        if spent == nanos:
            await self._corrected(key, "EXPIRE", _KEPT_S)  # the key is new
        if spent > ceiling:
            await self.give_back(key, nanos)
            _log.warning("spending ceiling of a provider reached", provider=provider.provider_id, ceiling_nanos=ceiling)
            raise LocalShortage(
                "The platform's budget for the model's provider is used up this month. Choose another model.",
                code="provider_ceiling_reached",
                retryable=False,
            )
        return key

    async def give_back(self, key: str, nanos: int) -> None:
        """Give back a part of what was taken from the month of this key; less than nothing takes more."""
        if key and nanos:
            await self._corrected(key, "INCRBY", -nanos)

    async def _corrected(self, key: str, command: str, value: int) -> None:
        """Correct the count. A correction that is lost leaves it too high."""
        try:
            await self._call(command, key, value)
        except (RedisError, OSError) as error:
            _log.warning("spending of a provider not corrected", key=key, command=command, error=repr(error))

    async def _call(self, command: str, key: str, value: int) -> int:
        return int(await self._connection.call(command, key, value, due=time.monotonic() + self._deadline_s))
