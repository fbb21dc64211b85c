"""Rows of the fault matrix that break gateways or their callers. What each promises stands in matrix.py."""

import contextlib
import json
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator

from tests.chaos.load import Heard, Load
from tests.chaos.platform import Platform
from tests.chaos.standing import assert_served, rss_bytes, whole
from tests.chaos.verdict import emitted, judge, recorded
from tests.conftest import wait_until

_JUMPING = """
import runpy, sys, time
from core import clock
real, began = clock.now_ms, time.monotonic()
clock.now_ms = lambda: real() - (3_600_000 if (time.monotonic() - began) % 1 > 0.5 else 0)
runpy.run_module("data_plane", run_name="__main__")
"""


@contextlib.contextmanager
def _sockets(url: str, count: int, sent: bytes, *, receive_bytes: int = 4096) -> Iterator[list[socket.socket]]:
    """Connections that have sent something and read nothing."""
    host, port = url.removeprefix("http://").split(":")
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            one.settimeout(5)
            one.connect((host, int(port)))
            one.sendall(sent)
            opened.append(one)
        yield opened
    finally:
        for one in opened:
            one.close()


def _request(key: str, **fields: object) -> bytes:
    body = json.dumps({"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def told_to_stop(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    url = platform.gateway("gw_three")
    load = Load([url], platform.tenant(), 100, max_tokens=60)
    wait_until(lambda: load.begun >= 95, what="streams to run")
    platform.signal("gw_three", signal.SIGTERM)
    began = time.monotonic()
    status = platform.running["gw_three"].wait(40)
    left_s = time.monotonic() - began
    ends = [one.end for one in load.join()]
    _forget(platform, "gw_three")
    assert (status, ends.count("done")) == (0, 100)
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests
    return f"100 of 100 streams ended whole, the process {left_s:.1f} s after the signal"


def hung_up_on(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000)
    key = platform.tenant()
    heard = Load([platform.gateways["gw_one"]], key, 10, max_tokens=1000, spread_s=0, timeout_s=2).join()
    assert [one.end for one in heard] == ["cut"] * 10
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests == 10
    heard_words = {one.request_id: one.words for one in heard}
    news = {name: one for name, one in emitted(platform).items() if name not in before}
    extra = max(sum(by.output_tokens for by in one.values()) - heard_words[name] for name, one in news.items())
    assert extra <= 50 + 5  # a second's worth, at one every 20 ms, and what was under way
    return f"at most {extra} tokens after the caller left, all billed exactly"


def not_read(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000, token_interval_s=0.001)
    key, url = platform.tenant(), platform.gateways["gw_one"]
    memory = rss_bytes(platform, "gw_one")
    began = time.monotonic()
    with _sockets(url, 50, _request(key, stream=True, n=4, max_tokens=1000), receive_bytes=2048):
        wait_until(lambda: len(_records(platform, key)) == 50, timeout_s=40, what="slow readers to be cut off")
        cut_s = time.monotonic() - began
        grown = rss_bytes(platform, "gw_one") - memory
    assert grown < 50_000_000
    outcomes = {record["outcome"] for record in _records(platform, key)}
    assert outcomes <= {"client_gone", "timeout", "done"}, outcomes  # done: all of it fitted into the kernel's buffers
    verdict = judge(platform, before)
    verdict.check()
    return f"all cut off and billed within {cut_s:.1f} s, memory +{grown / 1e6:.1f} MB"


def sent_half_a_header(platform: Platform) -> str:
    key, url = platform.tenant(), platform.gateways["gw_one"]
    with _sockets(url, 200, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ") as sockets:
        assert_served(whole(url, key))
        began = time.monotonic()
        for one in sockets:
            one.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while one.recv(4096):
                    pass
        closed_s = time.monotonic() - began
    assert_served(whole(url, key))
    return f"200 connections closed within {closed_s:.1f} s, others served meanwhile"


def jumping_clock(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    key = platform.tenant()
    url = platform.gateway("gw_jumping", argv=(sys.executable, "-c", _JUMPING, "gateway"))
    assert_served(Load([url], key, 20, max_tokens=60, spread_s=1).join())
    verdict = judge(platform, before)
    verdict.check()
    records = _records(platform, key)
    assert len(records) == 20
    durations = [record["duration_ms"] for record in records]
    assert all(1000 < duration < 20_000 for duration in durations), durations
    platform.signal("gw_jumping", signal.SIGTERM)
    platform.running["gw_jumping"].wait(20)
    _forget(platform, "gw_jumping")
    return f"20 requests of {min(durations)} to {max(durations)} ms"


def swept_twice(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    if "billing_two" not in platform.running:
        platform.billing("billing_two")
    key = platform.tenant()
    load = Load([platform.gateways["gw_two"]], key, 20, max_tokens=60, spread_s=0.2)
    wait_until(lambda: load.begun == 20, what="streams to run")
    time.sleep(0.5)  # until each has a checkpoint, and so a record
    platform.kill("gw_two")
    load.join()
    verdict = judge(platform, before)
    verdict.check()
    assert len(_records(platform, key)) == verdict.requests
    return f"{verdict.estimated} orphans, each billed once, the longest tail {verdict.tail_tokens_max} tokens"


def without_descriptors(platform: Platform) -> str:
    key, url = platform.tenant(), platform.gateways["gw_two"]
    whole(url, key)
    pid = platform.running["gw_two"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (80, limits[1]))
    try:
        with _sockets(url, 150, b""):
            time.sleep(1)
            assert platform.running["gw_two"].poll() is None
        began = time.monotonic()
        wait_until(lambda: whole(url, key, 1)[0].end == "done", timeout_s=5, what="the gateway to serve again")
        served_s = time.monotonic() - began
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert_served(whole(url, key))
    return f"150 connections with 80 descriptors; served again after {served_s:.1f} s"


def revoked(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000)
    said: dict[str, list[Heard]] = {}
    keys = {code: platform.tenant() for code in ("invalid_api_key", "tenant_suspended")}
    loads = {
        code: Load([platform.gateways["gw_one"]], key, 5, max_tokens=1000, spread_s=0) for code, key in keys.items()
    }
    wait_until(lambda: all(load.begun == 5 for load in loads.values()), what="streams to run")
    began = time.monotonic()
    platform.publisher.revoke(keys["invalid_api_key"])
    platform.publisher.tenant(tenant_id=platform.tenants[keys["tenant_suspended"]], status="suspended")
    for code, load in loads.items():
        said[code] = load.join()
    ended_s = time.monotonic() - began
    for code, heard in said.items():
        assert [(one.end, one.code) for one in heard] == [("error", code)] * 5
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests == 10
    return f"10 streams cut off {ended_s:.1f} s later, all billed exactly"


def _records(platform: Platform, key: str) -> list:
    return [one for one in recorded(platform).values() if one["tenant_id"] == platform.tenants[key]]


def _forget(platform: Platform, name: str) -> None:
    """It has ended for good."""
    del platform.running[name], platform.programs[name], platform.gateways[name]
