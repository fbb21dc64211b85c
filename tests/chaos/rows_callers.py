"""Rows of the fault matrix in which callers disconnect, are slow, or lose access. matrix.py holds their promises."""

import time
from typing import Final

from data_plane.gateway.settings import GatewaySettings
from tests.chaos.fixture import assert_served, memory_bytes, records, unary_calls
from tests.chaos.ledger_check import recorded
from tests.chaos.load import CallResult, Load
from tests.chaos.platform import BRISK, PRICES, Platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import wait_until
from tests.fixtures.faults import callers

# The times are those of production; the kernel keeps less, so that its bound is reached within a minute.
READ_SLOWLY: Final = {
    **{name: GatewaySettings.model_fields[name].default for name in ("inter_token_s", "client_tcp_timeout_s")},
    "client_send_buffer_bytes": 16_384,
}
SENT_SLOWLY: Final = {"headers_s": 10, "body_s": 10}
_EACH = 5  # streams that end in each way
_PER_S = 50  # tokens of a stream
_READERS = 200
_SLOW = 500
_CUT_S = 30
_HELD_TOKENS = 150


def disconnected(platform: Platform) -> str:
    """FIN, RST, and packets that are lost from now on, in mid-stream."""
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000)
    key, url = platform.tenant(), platform.gateways["gw_one"]
    unary_calls(url, key, 1)
    extra: dict[str, int] = {}
    for name, leave in (
        ("FIN", callers.hang_up), ("RST", callers.reset), ("nothing", callers.vanish),
    ):  # fmt: skip
        asked = callers.request(key, stream=True, max_tokens=1000)
        with callers.callers(url, _EACH, asked, receive_bytes=65_536) as calls:
            ids = [callers.begun(one) for one in calls]
            left_at = _produced(platform, ids)
            for one in calls:
                leave(one)
            wait_until(lambda ids=ids: set(ids) <= recorded(platform).keys(), what=f"bills after {name}")
            extra[name] = max(after - at for at, after in zip(left_at, _produced(platform, ids), strict=True))
    silent_s = BRISK["client_tcp_timeout_s"]
    assert max(extra["FIN"], extra["RST"]) <= _PER_S + 5, extra  # one second of tokens, and the tokens in flight
    assert extra["nothing"] <= (silent_s + 1) * _PER_S + 5, extra
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests == 3 * _EACH + 1
    return (
        f"after FIN at most {extra['FIN']} tokens, after RST {extra['RST']}; {extra['nothing']} where nothing was "
        f"acknowledged for {silent_s} s; all billed exactly"
    )


def _produced(platform: Platform, ids: list[str]) -> list[int]:
    return [sum(one.output_tokens for one in emitted(platform)[name].values()) for name in ids]


def read_slowly(platform: Platform) -> str:
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=480, token_interval_s=0.001)
    key = platform.tenant()
    asked = callers.request(key, stream=True, max_tokens=480, logprobs=True, top_logprobs=2)
    grown = 0
    with platform.gateway_for_now("gw_patient", **READ_SLOWLY) as url:
        unary_calls(url, key, 5)
        pid = platform.running["gw_patient"].pid
        memory = memory_bytes(pid)
        with (
            callers.callers(url, _READERS, asked, receive_bytes=2048) as readers,
            callers.each_second(readers),
        ):

            def all_billed() -> bool:
                nonlocal grown
                grown = max(grown, memory_bytes(pid) - memory)
                return len(records(platform, key)) == _READERS + 5

            wait_until(all_billed, timeout_s=90, what="slow readers to be cut off")
    assert grown <= 50_000_000, grown
    cut = [one for one in records(platform, key) if one["outcome"] == "client_gone"]
    assert len(cut) == _READERS, {one["outcome"] for one in records(platform, key)}
    slowest_s = max(one["duration_ms"] for one in cut) / 1000
    assert slowest_s <= _CUT_S, slowest_s
    return f"cut off and billed exactly within {slowest_s:.0f} s, memory +{grown / 1e6:.0f} MB"


def sent_slowly(platform: Platform) -> str:
    """Request heads without an end, and slow bodies from two tenants. The measured caller belongs to neither tenant."""
    key, slow_keys = platform.tenant(), [platform.tenant(), platform.tenant()]
    with platform.gateway_for_now("gw_patient", **SENT_SLOWLY) as url:
        unary_calls(url, key)
        quiet_s = [_p99(url, key)]
        began = time.monotonic()
        part = [callers.head(one, 100_000) + b'{"model": "' for one in slow_keys]
        with (
            callers.callers(url, _SLOW, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ") as heads,
            callers.callers(url, _SLOW // 2, part[0]) as some,
            callers.callers(url, _SLOW // 2, part[1]) as others,
        ):
            slow = [*heads, *some, *others]
            (behind,) = unary_calls(url, key, 1, max_tokens=1)  # waits until the gateway has accepted all connections
            assert_served([behind])
            with callers.each_second(slow, sends=b"a"):
                during_s = _p99(url, key)
                callers.ends(slow, timeout_s=max(SENT_SLOWLY.values()) + 5)
                closed_s = time.monotonic() - began
        quiet_s.append(_p99(url, key))
    assert during_s <= 2 * max(quiet_s), (during_s, quiet_s)
    times = f"{during_s * 1000:.0f} ms beside them, {max(quiet_s) * 1000:.0f} ms without"
    times += f"; a call made as all came at once took {behind.ended_s * 1000:.0f} ms"
    return f"all {len(slow)} connections closed within {closed_s:.1f} s; others' p99 {times}"


def _p99(url: str, key: str) -> float:
    """The p99 of whole answers of one token, in seconds."""
    results = unary_calls(url, key, 600, max_tokens=1, spread_s=6)
    assert_served(results)
    return sorted(one.ended_s for one in results)[-6]


def revoked(platform: Platform) -> str:
    before = frozenset(emitted(platform))
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000)
    results_by_code: dict[str, list[CallResult]] = {}
    keys = {code: platform.tenant() for code in ("invalid_api_key", "tenant_suspended")}
    loads = {
        code: Load([platform.gateways["gw_one"]], key, 5, max_tokens=1000, spread_s=0) for code, key in keys.items()
    }
    wait_until(lambda: all(load.begun == 5 for load in loads.values()), what="streams to run")
    began = time.monotonic()
    platform.publisher.revoke(keys["invalid_api_key"])
    platform.publisher.tenant(tenant_id=platform.tenants[keys["tenant_suspended"]], status="suspended")
    for code, load in loads.items():
        results_by_code[code] = load.join()
    ended_s = time.monotonic() - began
    assert ended_s <= 30
    for code, results in results_by_code.items():
        assert [(one.end, one.code) for one in results] == [("error", code)] * 5
    verdict = judge(platform, before)
    verdict.check()
    assert verdict.exact == verdict.requests == 10
    return f"10 streams cut off {ended_s:.1f} s later, all billed exactly"


def exhausted(platform: Platform) -> str:
    """A request reserves its maximum at its start, so a limit that is lowered later does not affect it."""
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=1000)
    url, changes = platform.gateways["gw_one"], ({"spend_ceiling_nanos": 1}, {"tokens_per_month": 1})
    loads = {
        key: Load([url], key, 5, max_tokens=_HELD_TOKENS, spread_s=0) for key in (platform.tenant() for _ in changes)
    }
    wait_until(lambda: all(load.begun == 5 for load in loads.values()), what="streams to run")
    for key, change in zip(loads, changes, strict=True):
        platform.publisher.tenant(tenant_id=platform.tenants[key], prices=PRICES, **change)
    for key, change in zip(loads, changes, strict=True):
        wait_until(
            lambda key=key: unary_calls(url, key, 1)[0].code == "insufficient_quota", what=f"{change} to be in the way"
        )
    assert all(one.end == "cut" for load in loads.values() for one in load.results), "they ended before the test"
    for load in loads.values():
        assert_served(load.join())
        assert {one.pieces for one in load.results} == {_HELD_TOKENS}
    return "10 streams ended whole, all billed exactly, and the next requests were refused"
