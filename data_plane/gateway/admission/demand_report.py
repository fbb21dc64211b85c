"""Reports to the fleet process what waits at this gateway for replicas, and what each pool serves for it.

Fails open: where a report cannot be written, requests run as before, and pools keep the replicas that they have.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.contracts.demand import GatewayDemand, ServedDemand, WaitingDemand
from core.contracts.usage import UsageEvent
from data_plane.gateway.admission.wait_queue import WaitQueue
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.replica_load import tag
from data_plane.gateway.scheduling.replicas import Replicas

_PERIOD_S: Final = 1.0
_EXPIRES_MS: Final = 5_000
_WINDOW: Final = 30  # periods
_REFUSED_S: Final = 5.0
_REFUSED_MAX: Final = 10_000
_LATENCIES_MAX: Final = 200  # of one pool in one period
_PERCENTILE_OF_MIN: Final = 20
_log = structlog.get_logger()


@dataclass(slots=True)
class _Served:
    """What one pool served in one period. Latencies are milliseconds."""

    input_tokens: int = 0
    output_tokens: int = 0
    first_token_ms: list[float] = field(default_factory=list)
    between_tokens_ms: list[float] = field(default_factory=list)


class DemandReport:
    """The report of one gateway process, written every second."""

    def __init__(
        self, redis: Redis, gateway_id: str, replicas: Replicas, queue: WaitQueue, *, adapters_max: int
    ) -> None:
        self._redis = redis
        self._key = redis_keys.gateway_demand(gateway_id)
        self._replicas = replicas
        self._queue = queue
        self._adapters_max = adapters_max
        self._refused: deque[tuple[float, InferenceRequest]] = deque(maxlen=_REFUSED_MAX)
        self._periods: deque[dict[str, _Served]] = deque([{}], maxlen=_WINDOW)
        self._began = time.monotonic()

    def refused(self, request: InferenceRequest) -> None:
        """A request was refused for lack of room. It counts as waiting for some seconds: its caller may try again."""
        self._refused.append((time.monotonic(), request))

    def served(self, pool: str, event: UsageEvent, sequences: int) -> None:
        """A replica of a pool has served a request."""
        served = self._periods[-1].setdefault(pool, _Served())
        served.input_tokens += event.input_tokens
        served.output_tokens += event.output_tokens
        if event.first_token_ms is None or len(served.first_token_ms) >= _LATENCIES_MAX:
            return
        served.first_token_ms.append(event.first_token_ms)
        steps = event.output_tokens / sequences - 1
        if steps >= 1:
            served.between_tokens_ms.append((event.duration_ms - event.first_token_ms) / steps)

    async def run_forever(self) -> None:
        """Write the report every second. Never returns."""
        written = True
        while True:
            try:
                await self.write()
                written = True
            except (RedisError, OSError) as error:
                if written:
                    _log.warning("demand not reported; pools keep their replicas", error=repr(error))
                written = False
            await asyncio.sleep(_PERIOD_S)
            self._periods.append({})

    async def write(self) -> None:
        """Write the report once. Raises redis.RedisError."""
        await self._redis.set(self._key, msgspec.json.encode(self.report()), px=_EXPIRES_MS)

    def report(self) -> GatewayDemand:
        """What waits now, and what was served in the last 30 s."""
        now = time.monotonic()
        while self._refused and now - self._refused[0][0] > _REFUSED_S:
            self._refused.popleft()
        waiting = [*self._queue.waiting(), *(request for _, request in self._refused)]
        return GatewayDemand(
            waiting=tuple(self._waiting(waiting)),
            served=tuple(self._served(now)),
            tenants=tuple(self._queue.tenant_demands()),
        )

    def _waiting(self, requests: Iterable[InferenceRequest]) -> Iterator[WaitingDemand]:
        groups: dict[tuple[str, int, frozenset[str]], list[InferenceRequest]] = {}
        for request in requests:
            groups.setdefault((request.base_model, request.rank, request.closed_pools), []).append(request)
        for (base_model, rank, closed_pools), each in groups.items():
            block = self._replicas.block_tokens(base_model)
            adapters = {request.adapter for request in each if request.adapter}
            yield WaitingDemand(
                base_model=base_model,
                rank=rank,
                requests=len(each),
                pages=sum(request.pages(block) for request in each if not request.is_batch),
                adapters=tuple(map(tag, islice(adapters, self._adapters_max))),
                closed_pools=tuple(closed_pools),
            )

    def _served(self, now: float) -> Iterator[ServedDemand]:
        adapters: dict[str, set[str]] = {}
        for replica in self._replicas.candidates():
            adapters.setdefault(replica.status.pool, set()).update(replica.load.tags)
        seconds = min(max(now - self._began, _PERIOD_S), _WINDOW * _PERIOD_S)
        for pool in {*adapters, *(name for period in self._periods for name in period)} - {""}:
            found = [period[pool] for period in self._periods if pool in period]
            yield ServedDemand(
                pool=pool,
                input_tokens_per_s=sum(each.input_tokens for each in found) / seconds,
                output_tokens_per_s=sum(each.output_tokens for each in found) / seconds,
                ttft_p95_ms=_p95([ms for each in found for ms in each.first_token_ms]),
                itl_p95_ms=_p95([ms for each in found for ms in each.between_tokens_ms]),
                adapters=tuple(islice(adapters.get(pool, ()), self._adapters_max)),
            )


def _p95(values: Sequence[float]) -> int | None:
    """None where there are too few values to tell."""
    if len(values) < _PERCENTILE_OF_MIN:
        return None
    return round(sorted(values)[int(0.95 * (len(values) - 1))])
