"""Rows of the fault matrix that break Redis or Postgres. matrix.py holds their promises."""

import time

from core import redis_keys
from tests.chaos.fixture import FAR, assert_served, unary_calls
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import wait_until

_AWAY_S = 60
_ADDED_S = 0.06  # a refusal may come this much after the deadline


def late_and_silent(platform: Platform) -> str:
    key, url, proxy = platform.tenant(), platform.gateways["gw_far"], platform.proxies["gw_far"]
    p99_s = 0.0
    for toxics in ({"latency_s": 2.0}, {"stall": True}):
        load = Load([url], key, 10, max_tokens=60, spread_s=0.2)
        wait_until(lambda load=load: load.begun == 10, what="streams to run")
        proxy.set(**toxics)
        refused = unary_calls(url, key, calls=100, spread_s=1)
        assert {(one.end, one.status) for one in refused} == {("refused", 503)}
        p99_s = max(p99_s, sorted(one.ended_s for one in refused)[-2])
        assert_served(load.join())
        proxy.set()
        wait_until(lambda: unary_calls(url, key, 1)[0].end == "done", what="the gateway to serve again")
    assert p99_s <= FAR["reserve_deadline_ms"] / 1000 + _ADDED_S, p99_s
    return f"200 refused, p99 {p99_s * 1000:.0f} ms; 20 streams ended and settled"


def flushed(platform: Platform) -> str:
    """This platform has no control plane, so the test publishes the snapshots again."""
    before = frozenset(emitted(platform))
    key = platform.tenant()
    load = Load(list(platform.gateways.values())[:2], key, 20, max_tokens=60, spread_s=1.2)
    wait_until(
        lambda: load.begun == 20 and any(one.end == "done" for one in load.results),
        what="all streams to run, and the first to end",
    )
    published = {name: platform.client.dump(name) for name in platform.client.scan_iter("tenora:*")
                 if name.startswith((b"tenora:snapshot", b"tenora:blob"))}  # fmt: skip
    platform.client.flushall()
    for name, value in published.items():
        platform.client.restore(name, 0, value)
    refused = unary_calls(platform.gateways["gw_one"], key, 1)
    assert {(one.end, one.status) for one in refused} == {("refused", 503)}  # the month's usage is unknown
    assert_served(load.join())
    wait_until(
        lambda: platform.client.exists(redis_keys.QUOTAS_REBUILT), timeout_s=30, what="billing to restore the quotas"
    )
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests
    return f"{verdict.requests} requests, all billed exactly"


def without_postgres(platform: Platform) -> str:
    before, key = frozenset(emitted(platform)), platform.tenant()
    platform.kill("postgres")
    began, results = time.monotonic(), []
    while time.monotonic() - began < _AWAY_S:
        results += Load(list(platform.gateways.values())[:2], key, 50, max_tokens=60, spread_s=8).join()
    platform.restart("postgres")
    back_at = time.monotonic()
    assert_served(results)
    verdict = judge(platform, before, results=results)
    drained_s = time.monotonic() - back_at
    verdict.check()
    assert verdict.exact == verdict.requests == len(results)
    return (
        f"{len(results)} streams during the outage, all ended whole; "
        f"all billed exactly {drained_s:.1f} s after the restart"
    )
