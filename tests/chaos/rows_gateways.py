"""Rows of the fault matrix that break gateways. matrix.py holds their promises."""

import resource
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from core import redis_keys
from tests.chaos.fixture import assert_served, memory_bytes, records, unary_calls
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.verdict import emitted, judge, quiet
from tests.conftest import wait_until
from tests.fixtures.faults import callers

DRAIN: Final = {"gateway_drain_s": 15}
_LONG_TOKENS = 450  # one stream, which runs for most of the drain time
# Replaces every wall clock: correct, an hour fast and slow, and fast and slow by more than a month.
_JUMPING = """
import datetime, runpy, time
from core import clock
now, time_ns, began = clock.now, time.time_ns, time.monotonic()
steps_s = (0, 3600, -3600, 40 * 86400, -40 * 86400)
off_s = lambda: steps_s[int((time.monotonic() - began) / 0.3) % len(steps_s)]
time.time_ns = lambda: time_ns() + off_s() * 10**9
time.time = lambda: time.time_ns() / 1e9
clock.now = lambda: now() + datetime.timedelta(seconds=off_s())
runpy.run_module("data_plane", run_name="__main__")
"""
_ROOM_BYTES = 3_000_000  # less than 400 streams need
_NEAR = timedelta(seconds=2)  # tolerance to the database's clock


def terminated(platform: Platform) -> str:
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=_LONG_TOKENS)
    with platform.gateway_for_now("gw_three", **DRAIN) as url:
        key = platform.tenant()
        loads = [Load([url], key, 99, max_tokens=60), Load([url], key, 1, max_tokens=_LONG_TOKENS)]
        wait_until(lambda: sum(load.begun for load in loads) == 100, what="streams to run")
        platform.signal("gw_three", signal.SIGTERM)
        began = time.monotonic()
        status = platform.running["gw_three"].wait(40)
        left_s = time.monotonic() - began
        results = [one for load in loads for one in load.join()]
    assert status == 0
    assert_served(results)
    assert results[-1].pieces == _LONG_TOKENS
    assert left_s > DRAIN["gateway_drain_s"] / 2
    longest_s = results[-1].ended_s
    return (
        f"100 of 100 streams ended whole, one of {longest_s:.0f} s; the process exited {left_s:.1f} s after the signal"
    )


def jumping_clock(platform: Platform) -> str:
    key = platform.tenant()
    with platform.gateway_for_now("gw_jumping", argv=(sys.executable, "-c", _JUMPING, "gateway")) as url:
        began = _database_now(platform)
        assert_served(Load([url], key, 20, max_tokens=60, spread_s=1).join())
    quiet(platform)
    ended, found = _database_now(platform), records(platform, key)
    assert len(found) == 20
    durations = [one["duration_ms"] for one in found]
    assert all(1000 < duration < 20_000 for duration in durations), durations
    off = [one for one in found if not began - _NEAR < one["started_at"] < one["settled_at"] < ended + _NEAR]
    assert not off, off[:2]
    return f"20 requests of {min(durations)} to {max(durations)} ms, each billed by the database's clock"


def _database_now(platform: Platform) -> datetime:
    with platform.engine.connect() as connection:
        return connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()


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
    return f"{verdict.estimated} orphans, each billed once, longest tail {verdict.tail_tokens_max} tokens"


def killed_under_whole_answers(platform: Platform) -> str:
    """An engine says how far a whole answer is when it is asked, so these have checkpoints as streams do."""
    before, key = frozenset(emitted(platform)), platform.tenant()
    load = Load([platform.gateways["gw_two"]], key, 20, stream=False, max_tokens=60, spread_s=0.2)
    wait_until(lambda: _checkpoints(platform, key) == 20, what="a checkpoint of each, and so a record")
    platform.kill("gw_two")
    assert {one.end for one in load.join()} == {"cut"}
    verdict = judge(platform, before)
    verdict.check()
    assert len(records(platform, key)) == verdict.requests
    return f"{verdict.estimated} answers, each billed once, longest tail {verdict.tail_tokens_max} tokens"


def without_descriptors(platform: Platform) -> str:
    key, url = platform.tenant(), platform.gateways["gw_two"]
    unary_calls(url, key)
    pid = platform.running["gw_two"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (80, limits[1]))
    try:
        with callers.callers(url, 150, b""):
            used = Path(f"/proc/{pid}/fd")
            wait_until(lambda: len(list(used.iterdir())) >= 80, what="its descriptors to be used up")
            assert platform.running["gw_two"].poll() is None
        began = time.monotonic()
        wait_until(lambda: unary_calls(url, key, 1)[0].end == "done", timeout_s=5, what="the gateway to serve again")
        served_s = time.monotonic() - began
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert_served(unary_calls(url, key))
    return f"150 connections with 80 descriptors; served again after {served_s:.1f} s"


def without_memory(platform: Platform) -> str:
    """Limit the gateway's allocators. Parts of Python do not survive this, so the gateway may need a restart."""
    key = platform.tenant()
    with platform.gateway_for_now("gw_small") as url:
        unary_calls(url, key)
        process, errors_before = platform.running["gw_small"], platform.log("gw_small").count("MemoryError")
        limits = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        resource.prlimit(
            process.pid, resource.RLIMIT_DATA, (memory_bytes(process.pid, "VmData") + _ROOM_BYTES, limits[1])
        )
        Load([url], key, 400, max_tokens=60, spread_s=1).join()
        if (status := process.poll()) is None:
            assert platform.log("gw_small").count("MemoryError") > errors_before, "its memory was not used up"
            resource.prlimit(process.pid, resource.RLIMIT_DATA, limits)
        else:
            platform.restart("gw_small")
        began = time.monotonic()
        wait_until(lambda: unary_calls(url, key, 1)[0].end == "done", timeout_s=5, what="the gateway to serve again")
        served_s = time.monotonic() - began
    end = "it survived" if status is None else f"it exited with status {status} and was restarted"
    return f"{_ROOM_BYTES / 1e6:g} MB for 400 streams: {end}; served after {served_s:.1f} s, nothing billed twice"


def _checkpoints(platform: Platform, key: str) -> int:
    """Number of a tenant's running requests with a checkpoint."""
    client, tenant = platform.client, platform.tenants[key]
    running = client.zrange(redis_keys.tenant_leases(tenant), 0, -1)
    return sum(client.hexists(redis_keys.reservation(tenant, one.decode()), "checkpoint") for one in running)
