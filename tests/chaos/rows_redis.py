"""Rows of the fault matrix that break Redis. What each promises stands in matrix.py."""

import time

from core import keys
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.standing import assert_served, whole
from tests.chaos.verdict import emitted, judge
from tests.conftest import wait_until


def late_and_silent(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    key, url, proxy = platform.tenant(), platform.gateways["gw_far"], platform.proxies["gw_far"]
    slowest_s = 0.0
    for toxics in ({"latency_s": 2.0}, {"stall": True}):
        load = Load([url], key, 10, max_tokens=60, spread_s=0.2)
        wait_until(lambda load=load: load.begun == 10, what="streams to run")
        proxy.set(**toxics)
        time.sleep(0.3)
        refused = whole(url, key, calls=5, spread_s=0)
        assert {(one.end, one.status) for one in refused} == {("refused", 503)}
        slowest_s = max(slowest_s, *(one.ended_s for one in refused))
        assert_served(load.join())
        proxy.set()
        wait_until(lambda: whole(url, key, 1)[0].end == "done", what="the gateway to serve again")
    assert slowest_s < 2
    verdict = judge(platform, before)
    verdict.check()
    return f"refused within {slowest_s * 1000:.0f} ms, 20 streams ended and settled"


def emptied(platform: Platform) -> str:
    """The control plane publishes everything again, which is not this platform's: the test does so."""
    before = frozenset(emitted(platform))
    key = platform.tenant()
    load = Load(list(platform.gateways.values())[:2], key, 20, max_tokens=60, spread_s=1.2)
    wait_until(lambda: any(one.end == "done" for one in load.heard), what="the first stream to end")
    published = {name: platform.client.dump(name) for name in platform.client.scan_iter("tenora:*")
                 if name.startswith((b"tenora:snapshot", b"tenora:blob"))}  # fmt: skip
    platform.client.flushall()
    for name, value in published.items():
        platform.client.restore(name, 0, value)
    refused = whole(platform.gateways["gw_one"], key, 1)
    assert {(one.end, one.status) for one in refused} == {("refused", 503)}  # nobody knows what the month has used
    assert_served(load.join())
    wait_until(lambda: platform.client.exists(keys.QUOTAS_REBUILT), timeout_s=30, what="billing to give it back")
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests
    return f"{verdict.requests} requests, all billed exactly"
