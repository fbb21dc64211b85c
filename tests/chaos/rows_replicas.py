"""Rows of the fault matrix that break a replica. matrix.py holds their promises."""

import signal
import time
from typing import Final

from data_plane.gateway.settings import GatewaySettings
from tests.chaos.fixture import assert_served, memory_bytes, unary_calls, watch_memory
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import wait_until

# An open circuit breaker would reduce the attempts. The retry budget is the default.
NEVER_OPEN: Final = {"breaker_failures": 10_000}
_GROWN_BYTES = 20_000_000
_STREAM_TOKENS = 60
_AT_ONCE = 50
_NO_ADAPTER: Final = {"loading": "1", "loading_code": "store_unavailable", "adapters_only": True}
_FAILS_AFTER_S = 0.5  # time until a load fails; all simultaneous calls have been sent to the replica by then
_HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
_EVENTS = _HEAD + b"content-type: text/event-stream\r\n\r\n"
GARBAGE = {
    "no HTTP at all": b"\x00\xff" * 500,
    "a page": _HEAD + b"content-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    "an empty body": _HEAD + b"content-length: 0\r\n\r\n",
    "half an event": _EVENTS + b'data: {"id":"x","choi',
    "a line of 40 MB": _EVENTS + b"data: " + b"x" * (2 * _GROWN_BYTES),
    "an event that is no JSON": _EVENTS + b"data: {]\n\n",
}


def killed_before_its_first_byte(platform: Platform) -> str:
    platform.witnesses["rep_one"].faults(hang=True)
    key, before = platform.tenant(), _received(platform, "rep_one")
    load = Load([platform.gateways["gw_one"]], key, 10, max_tokens=20, spread_s=0.1)
    wait_until(lambda: _received(platform, "rep_one") - before >= 3, what="requests")
    platform.kill("rep_one")
    killed_at = time.monotonic()
    assert_served(load.join())
    later_s = max(call.began_s + (call.first_s or 0) for call in load.results) - killed_at
    assert later_s <= 1.2
    return f"last first token {later_s:.2f} s after the kill"


def killed_under_streams(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    key = platform.tenant()
    load = Load(list(platform.gateways.values())[:2], key, 50, max_tokens=_STREAM_TOKENS)
    wait_until(lambda: load.begun == 50, what="streams to run")
    platform.kill("rep_one")
    began = time.monotonic()
    assert_served(unary_calls(platform.gateways["gw_one"], key))
    served_s = time.monotonic() - began
    assert served_s <= 2
    results = load.join()
    ended = [one for one in results if one.end == "error"]
    assert {one.code for one in ended} <= {"replica_failed"}
    assert 0 < len(ended) < 50
    ran_on = {one.request_id: set(emitted(platform)[one.request_id]) for one in results}
    unharmed = [one for one in results if one.end == "done" and one.pieces == _STREAM_TOKENS]
    harmed = [one for one in ended if ran_on[one.request_id] == {"rep_one"}]
    others = [one for one in results if one not in unharmed and one not in harmed]
    assert not others, [(one, ran_on[one.request_id]) for one in others[:2]]
    verdict = judge(platform, before)
    return (
        f"{len(ended)} of 50 streams failed, all of them on that replica, the others ended whole; longest tail "
        f"{verdict.tail_tokens_max}; ten more requests took {served_s:.2f} s"
    )


def stopped(platform: Platform) -> str:
    key = platform.tenant()
    load = Load([platform.gateways["gw_one"]], key, 20, max_tokens=60, spread_s=0.2)
    wait_until(lambda: load.begun == 20, what="streams to run")
    platform.signal("rep_one", signal.SIGSTOP)
    began = time.monotonic()
    assert_served(unary_calls(platform.gateways["gw_two"], key, timeout_s=30))
    results = load.join()
    ended_s = time.monotonic() - began
    assert {one.code for one in results if one.end != "done"} <= {"generation_timeout", "replica_failed"}
    assert ended_s < 15
    wait_until(lambda: platform.proxies["rep_one"].connections == 0, timeout_s=10, what="its sockets to be closed")
    platform.signal("rep_one", signal.SIGCONT)
    return f"all streams had ended {ended_s:.1f} s later, and no socket stayed open"


def hung_but_healthy(platform: Platform) -> str:
    key, url = platform.tenant(), platform.gateways["gw_one"]
    before = _received(platform, "rep_one")
    wait_until(
        lambda: unary_calls(url, key) and _received(platform, "rep_one") > before, what="requests at the replica"
    )
    platform.witnesses["rep_one"].faults(hang=True, deaf=True)
    before = _received(platform, "rep_one")
    results = unary_calls(url, key, calls=8, timeout_s=30)
    assert_served(results)
    hung = _received(platform, "rep_one") - before
    assert hung > 0
    slowest_s = max(one.ended_s for one in results)
    assert slowest_s < 20
    return f"8 whole answers, {hung} of them first sent to that replica; the slowest took {slowest_s:.1f} s"


def failing_now_and_then(platform: Platform) -> str:
    calls, key, defaults = 200, platform.tenant(), GatewaySettings.model_fields
    burst, percent = defaults["retry_burst"].default, defaults["retry_percent"].default
    with platform.gateway_for_now("gw_never_open", **NEVER_OPEN) as url:
        unary_calls(url, key)
        before = _received(platform)
        for witness in platform.witnesses.values():
            witness.faults(status=500, share=0.3)
        results = unary_calls(url, key, calls=calls, spread_s=2)
        attempts = _received(platform) - before
    assert calls < attempts <= calls + burst + calls * percent / 100, attempts
    assert {one.end for one in results} <= {"done", "refused"}
    served = sum(one.end == "done" for one in results)
    assert served > calls * 0.5
    beyond = max(0, attempts - burst) / calls
    shares = f"{attempts / calls:.2f}x; {beyond:.2f}x beyond the burst of {burst}"
    return f"{attempts} attempts for {calls} requests ({shares}), {served} served"


def sending_garbage(platform: Platform) -> str:
    key, grown = platform.tenant(), {}
    with platform.gateway_for_now("gw_never_open", **NEVER_OPEN) as url:
        unary_calls(url, key, calls=5)
        pid = platform.running["gw_never_open"].pid
        for stream in (True, False):
            before = watch_memory(pid)
            for name, reply in GARBAGE.items():
                for replica in platform.witnesses:
                    platform.proxies[replica].set(reply=reply)
                    platform.proxies[replica].reset()  # kept connections would ignore the new reply
                results = Load([url], key, 5, stream=stream, max_tokens=5, spread_s=0).join()
                assert {(one.end, one.status) for one in results} == {("refused", 502)}, (name, results)
            grown[stream] = memory_bytes(pid, "VmHWM") - before
            for proxy in platform.proxies.values():
                proxy.set()
    assert max(grown.values()) < _GROWN_BYTES, grown
    peaks = f"+{grown[True] / 1e6:.1f} MB for five streams, +{grown[False] / 1e6:.1f} MB for five whole answers"
    return f"{len(GARBAGE)} kinds of garbage, peak memory {peaks}"


def without_an_adapter(platform: Platform) -> str:
    """Many adapters in turn, then the first calls of one at once, at a gateway with the default retry budget."""
    served, tried = _adapters_in_turn(platform, platform.gateways["gw_one"])
    with platform.gateway_for_now("gw_shipped") as url:
        at_once = [_first_calls_at_once(platform, url, broken) for broken in platform.witnesses]
    sent, refused = [sum(counts) for counts in zip(*at_once, strict=True)]
    return (
        f"{served} adapters served, {tried} of them after a second attempt; of twice {_AT_ONCE} "
        f"simultaneous first calls, {sent} were sent to that replica, and {refused} failed"
    )


def _adapters_in_turn(platform: Platform, url: str) -> tuple[int, int]:
    """Numbers of requests served and of those that failed on a replica first. The first replica is not predictable."""
    key = platform.tenant()
    served = tried = 0
    for broken in platform.witnesses.values():
        broken.faults(**_NO_ADAPTER)
        before = _received(platform, broken.id)
        names = [f"support-{broken.id[4:]}-{number}" for number in range(6)]
        for name in names:
            platform.publisher.adapter(platform.tenants[key], name)
        wait_until(
            lambda last=names[-1]: unary_calls(url, key, 1, model=last)[0].end == "done", what="adapters to be known"
        )
        for name in names[:-1]:
            assert_served(unary_calls(url, key, 1, model=name))
        tried += _received(platform, broken.id) - before
        served += len(names)
        broken.faults()
    assert tried > 0, "no request was placed where it could not be served"
    return served, tried


def _first_calls_at_once(platform: Platform, url: str, broken: str) -> tuple[int, int]:
    """First calls of adapters whose home replica cannot load them: the number sent there and the number that failed.

    It repeats until more calls were sent there than the retry budget covers.
    """
    key, burst = platform.tenant(), GatewaySettings.model_fields["retry_burst"].default
    names = [f"crowd-{broken[4:]}-{number}" for number in range(20)]
    for name in names:
        platform.publisher.adapter(platform.tenants[key], name)
    wait_until(lambda: unary_calls(url, key, 1, model=names[-1])[0].end == "done", what="adapters to be known")
    platform.witnesses[broken].faults(**_NO_ADAPTER)
    platform.proxies[broken].set(latency_s=_FAILS_AFTER_S)
    sent = refused = 0
    while sent <= burst:
        assert len(names) > 1, "the first calls of no adapter went where it could not be loaded"
        before = _received(platform, broken)
        results = unary_calls(url, key, _AT_ONCE, model=names.pop(0), spread_s=0)
        sent, failed = _received(platform, broken) - before, [one for one in results if one.end != "done"]
        refused += len(failed)
        assert refused <= 1, f"{refused} of {_AT_ONCE} calls failed, of {sent} sent there: {failed[:2]}"
    platform.proxies[broken].set()
    platform.witnesses[broken].faults()
    return sent, refused


def _received(platform: Platform, *replicas: str) -> int:
    """Requests that have come to these replicas, or to all."""
    emitted(platform)
    counts = platform.witnessed.received
    return sum(counts[name] for name in replicas or platform.witnesses)
