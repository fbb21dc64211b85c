"""Rows of the fault matrix that break gateways. What each promises stands in matrix.py."""

import resource
import signal
import sys
import time
from pathlib import Path

from core import keys
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.standing import assert_served, records, whole
from tests.chaos.verdict import emitted, judge
from tests.conftest import wait_until
from tests.fixtures import faulty_callers

_JUMPING = """
import runpy, sys, time
from core import clock
real, began = clock.now_ms, time.monotonic()
clock.now_ms = lambda: real() - (3_600_000 if (time.monotonic() - began) % 1 > 0.5 else 0)
runpy.run_module("data_plane", run_name="__main__")
"""


def told_to_stop(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    with platform.gateway_for_now("gw_three") as url:
        load = Load([url], platform.tenant(), 100, max_tokens=60)
        wait_until(lambda: load.begun >= 95, what="streams to run")
        platform.signal("gw_three", signal.SIGTERM)
        began = time.monotonic()
        status = platform.running["gw_three"].wait(40)
        left_s = time.monotonic() - began
        ends = [one.end for one in load.join()]
    assert (status, ends.count("done")) == (0, 100)
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests
    return f"100 of 100 streams ended whole, the process {left_s:.1f} s after the signal"


def jumping_clock(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    key = platform.tenant()
    with platform.gateway_for_now("gw_jumping", argv=(sys.executable, "-c", _JUMPING, "gateway")) as url:
        assert_served(Load([url], key, 20, max_tokens=60, spread_s=1).join())
        verdict = judge(platform, before)
    verdict.check()
    durations = [record["duration_ms"] for record in records(platform, key)]
    assert len(durations) == 20
    assert all(1000 < duration < 20_000 for duration in durations), durations
    return f"20 requests of {min(durations)} to {max(durations)} ms"


def swept_twice(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    key = platform.tenant()
    platform.billing("billing_two")
    load = Load([platform.gateways["gw_two"]], key, 20, max_tokens=60, spread_s=0.2)
    wait_until(lambda: _checkpoints(platform, key) == 20, what="a checkpoint of each, and so a record")
    platform.kill("gw_two")
    load.join()
    verdict = judge(platform, before)
    verdict.check()
    assert len(records(platform, key)) == verdict.requests
    platform.retire("billing_two")
    return f"{verdict.estimated} orphans, each billed once, the longest tail {verdict.tail_tokens_max} tokens"


def killed_under_whole_answers(platform: Platform) -> str:
    """An engine says what a whole answer has used when it ends, so there is nothing to note before."""
    before, key = frozenset(emitted(platform)), platform.tenant()
    load = Load([platform.gateways["gw_two"]], key, 20, stream=False, max_tokens=60, spread_s=0.2)
    wait_until(lambda: len(emitted(platform).keys() - before) == 20, what="answers to be generated")
    platform.kill("gw_two")
    assert {one.end for one in load.join()} == {"cut"}
    verdict = judge(platform, before)
    verdict.check()
    assert records(platform, key) == []
    return f"{verdict.requests} answers, {verdict.tail_tokens} tokens billed to nobody, nothing held"


def without_descriptors(platform: Platform) -> str:
    key, url = platform.tenant(), platform.gateways["gw_two"]
    whole(url, key)
    pid = platform.running["gw_two"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (80, limits[1]))
    try:
        with faulty_callers.callers(url, 150, b""):
            used = Path(f"/proc/{pid}/fd")
            wait_until(lambda: len(list(used.iterdir())) >= 80, what="its descriptors to be used up")
            assert platform.running["gw_two"].poll() is None
        began = time.monotonic()
        wait_until(lambda: whole(url, key, 1)[0].end == "done", timeout_s=5, what="the gateway to serve again")
        served_s = time.monotonic() - began
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert_served(whole(url, key))
    return f"150 connections with 80 descriptors; served again after {served_s:.1f} s"


def _checkpoints(platform: Platform, key: str) -> int:
    """Running requests of a tenant whose use has been noted."""
    client, tenant = platform.client, platform.tenants[key]
    running = client.zrange(keys.tenant_leases(tenant), 0, -1)
    return sum(client.hexists(keys.reservation(tenant, one.decode()), "checkpoint") for one in running)
