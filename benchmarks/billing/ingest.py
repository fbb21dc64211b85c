"""Records usage events that arrive at a steady rate, and measures for how long each one waited."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import redis as redis_client
import sqlalchemy as sa

from benchmarks.billing.seed import Progress
from benchmarks.load import quantile
from billing.settings import BillingSettings
from billing.usage.metering import Meter
from billing.usage.stream import UsageStream
from billing.worker import connect_redis
from core import clock, redis_keys
from core.contracts.usage import UsageEvent
from core.ids import new_id
from core.settings import RedisSettings

TENANTS: Final = 1_000
_WRITES_A_SECOND: Final = 50


class Ingest(NamedTuple):
    """``lag_p99_s`` is the 99th percentile of the seconds from an event's arrival in the stream to its commit, of the
    events that count.
    """

    events_a_second: float
    lag_p99_s: float


def record_events(engine: sa.Engine, redis_url: str, events: int) -> float:
    """Events a second that one worker records, in batches as they come from the stream."""
    settings = BillingSettings()
    with connect_redis(RedisSettings(redis_url=redis_url), settings) as redis:
        stream = UsageStream(redis, "benchmark")
        stream.ensure_group()
        for first in range(0, events, 5_000):
            _add(redis, first, min(5_000, events - first))
        meter = Meter(engine, stream, settings)
        begun = time.monotonic()
        while entries := stream.read(count=settings.billing_batch_events_max, block_ms=None):
            meter.process(entries)
        return events / (time.monotonic() - begun)


def record_paced(
    engine: sa.Engine, redis_url: str, *, rate: int, seconds: int, counts: Callable[[], bool] = lambda: True
) -> Ingest:
    """Record ``rate`` events a second for so many seconds. They come from a process of their own, as from a gateway.
    The lag is that of the events that were recorded while ``counts`` was true.
    """
    settings = BillingSettings()
    events, recorded, lags = rate * seconds, 0, list[float]()
    progress = Progress("events recorded", events)
    with connect_redis(RedisSettings(redis_url=redis_url), settings) as redis:
        stream = UsageStream(redis, "benchmark")
        stream.ensure_group()
        meter = Meter(engine, stream, settings)
        gateway = multiprocessing.get_context("spawn").Process(target=_produce, args=(redis_url, rate, seconds))
        gateway.start()
        begun = None
        while recorded < events:
            entries = stream.read(count=settings.billing_batch_events_max, block_ms=1_000)
            assert entries or gateway.is_alive() or recorded == events, "the gateway ended early"
            if entries and begun is None:  # the other process takes two seconds to start
                begun = time.monotonic()
            counted = counts()
            meter.process(entries)
            now = clock.now_ms()
            recorded += len(entries)
            if counted:
                lags += [(now - int(entry.id.partition(b"-")[0])) / 1000 for entry in entries]
            progress.done(recorded)
        assert begun is not None
        took = time.monotonic() - begun
        gateway.join()
    assert lags, "no event was recorded meanwhile"
    return Ingest(events / took, quantile(lags, 0.99))


def _produce(redis_url: str, rate: int, seconds: int) -> None:
    batch = rate // _WRITES_A_SECOND
    with redis_client.Redis.from_url(redis_url) as redis:
        begun = time.monotonic()
        for number in range(_WRITES_A_SECOND * seconds):
            time.sleep(max(0.0, begun + number / _WRITES_A_SECOND - time.monotonic()))
            _add(redis, number * batch, batch)


def _add(redis: redis_client.Redis, first: int, count: int) -> None:
    pipeline = redis.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd(redis_keys.USAGE_STREAM, {"event": msgspec.json.encode(_event(number))})
    pipeline.execute()


def _event(number: int) -> UsageEvent:
    now = clock.now_ms()
    return UsageEvent(
        request_id=new_id("req"), tenant_id=f"tn_many_{number % TENANTS}", key_id="key_1", base_model="base",
        adapter_id=f"ad_{number % 10}", revision_id=f"rev_{number % 10}", replica_id="rep_1", outcome="done",
        started_at_ms=now - 200, settled_at_ms=now, input_tokens=100, cached_tokens=32, output_tokens=20,
        kv_page_ms=1_601,
    )  # fmt: skip
