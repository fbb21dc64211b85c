"""Reads the signals of pools: reports of gateways, heartbeats of replicas, and the pages that are held on them.

A signal is missing where a gateway serves without a report, and where replicas are wanted of which none reports.
Then there are no signals, and the caller keeps what it has.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Final, cast

from redis import Redis

from control_plane.pools.models import PoolRow
from control_plane.pools.planner import PoolSignals
from core import redis_keys
from core.contracts.demand import GatewayDemand, WaitingDemand, read_demand
from core.contracts.replicas import ReplicaStatus
from core.rank_classes import class_for

_GATEWAY_AGE_MAX_MS: Final = 10_000  # a gateway whose heartbeat is older than this is gone


def gateways_demand(redis: Redis) -> list[GatewayDemand] | None:
    """The report of every live gateway; None where one is missing, or no gateway is there."""
    found = reports_of_gateways(redis)
    reports = [each for each in found if each is not None]
    return reports if reports and len(reports) == len(found) else None


def reports_of_gateways(redis: Redis) -> list[GatewayDemand | None]:
    """The report of every live gateway; None for one that is missing or cannot be read."""
    seconds, _ = redis.time()
    ids = cast("list[bytes]", redis.zrangebyscore(redis_keys.GATEWAYS, seconds * 1000 - _GATEWAY_AGE_MAX_MS, "+inf"))
    names = [each.decode(errors="replace") for each in ids]
    if not names:
        return []
    keys = [*map(redis_keys.gateway, names), *map(redis_keys.gateway_demand, names)]
    values = cast("list[bytes | None]", redis.mget(keys))
    return [
        None if report is None else read_demand(report)
        for alive, report in zip(values[: len(names)], values[len(names) :], strict=True)
        if alive is not None  # else it has stopped
    ]


def pool_signals(
    redis: Redis,
    pools: Collection[PoolRow],
    targets: Mapping[str, int],
    statuses: Sequence[ReplicaStatus],
) -> dict[str, PoolSignals | None]:
    """The signals of each of these pools, which are all that may grow."""
    if not pools:
        return {}
    reports = gateways_demand(redis)
    found: dict[str, PoolSignals | None] = dict.fromkeys((pool.name for pool in pools), None)
    if reports is None:
        return found
    for pool in pools:
        mine = [status for status in statuses if status.pool == pool.name]
        if mine or not targets[pool.name]:
            ready = [status for status in mine if status.state == "ready"]
            found[pool.name] = _signals(pool, pools, ready, _held_pages(redis, ready), reports)
    return found


def _held_pages(redis: Redis, replicas: Sequence[ReplicaStatus]) -> int:
    with redis.pipeline(transaction=False) as pipe:
        for replica in replicas:
            pipe.hget(redis_keys.replica_held_pages(replica.id), "total")
        return sum(int(held or 0) for held in pipe.execute())


def _signals(
    pool: PoolRow,
    pools: Collection[PoolRow],
    ready: Sequence[ReplicaStatus],
    held_pages: int,
    reports: Sequence[GatewayDemand],
) -> PoolSignals:
    waiting = [
        (demand, part) for report in reports for demand in report.waiting if (part := _part(pool, pools, demand)) > 0
    ]
    served = [demand for report in reports for demand in report.served if demand.pool == pool.name]
    adapters = {name for wait, _ in waiting for name in wait.adapters}
    adapters |= {name for run in served for name in run.adapters}
    return PoolSignals(
        ready=len(ready),
        pages_per_replica=min((status.pages_total for status in ready), default=0),
        slots_per_replica=min((status.slots for status in ready), default=0),
        held_pages=held_pages,
        waiting_pages=math.ceil(sum(demand.pages * part for demand, part in waiting)),
        waiting_requests=math.ceil(sum(demand.requests * part for demand, part in waiting)),
        adapters=len(adapters),
        input_tokens_per_s=sum(demand.input_tokens_per_s for demand in served),
        output_tokens_per_s=sum(demand.output_tokens_per_s for demand in served),
        ttft_p95_ms=max((demand.ttft_p95_ms for demand in served if demand.ttft_p95_ms is not None), default=None),
        itl_p95_ms=max((demand.itl_p95_ms for demand in served if demand.itl_p95_ms is not None), default=None),
    )


def _part(pool: PoolRow, pools: Collection[PoolRow], demand: WaitingDemand) -> Fraction:
    """The part of these requests that waits for this pool. They wait for the placement group of their rank among the
    pools that serve them; of several pools of a group, each takes an equal part.
    """
    able = [
        each.rank_max for each in pools if each.base_model == pool.base_model and each.name not in demand.closed_pools
    ]
    waits = demand.base_model == pool.base_model and pool.name not in demand.closed_pools
    if not waits or class_for(demand.rank, able) != pool.rank_max:
        return Fraction(0)
    return Fraction(1, able.count(pool.rank_max))
