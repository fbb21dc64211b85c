"""The fault matrix as data: what is broken, what must hold, and the code that breaks it. It names what it leaves out.

Each row is given a whole platform that is well; it returns what it measured, or raises AssertionError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos import rows_gateways, rows_redis, rows_replicas
from tests.chaos.platform import Platform
from tests.chaos.standing import heal


@dataclass(frozen=True)
class Row:
    """``short`` rows belong to the suite that every change runs."""

    id: str
    fault: str
    promise: str
    act: Callable[[Platform], str]
    short: bool = False


ROWS: Final = (
    Row("F1", "a replica killed before its first byte", "tried elsewhere: no caller notices",
        rows_replicas.killed_before_its_first_byte, short=True),
    Row("F2", "a replica killed under 50 streams", "its streams end with an error event, the others go on",
        rows_replicas.killed_under_streams, short=True),
    Row("F3", "a replica stopped (SIGSTOP)", "its streams end in time, no socket is left, others are served",
        rows_replicas.stopped),
    Row("F4", "/health is well and no token comes", "whole answers are given up and served elsewhere",
        rows_replicas.hung_but_healthy, short=True),
    Row("F5", "500 for three requests in ten", "at most one request in ten is tried twice, beyond the first 20",
        rows_replicas.failing_now_and_then, short=True),
    Row("F6", "garbage, half an event, a line of 10 MB, an empty body", "502, and memory stays bounded",
        rows_replicas.talking_garbage, short=True),
    Row("F7", "an adapter cannot be loaded on one replica", "served by another",
        rows_replicas.without_an_adapter, short=True),
    Row("F12", "Redis 2 s late, then silent", "503 within the deadline; what ran ends and settles",
        rows_redis.late_and_silent),
    Row("F13", "FLUSHALL under 20 streams", "nothing that was used is lost or billed twice",
        rows_redis.emptied, short=True),
    Row("F19", "SIGTERM under 100 streams", "all end whole, and the gateway leaves with status 0",
        rows_gateways.told_to_stop),
    Row("F20", "10 callers hang up in mid-stream", "the engine stops within 1 s, each billed exactly",
        rows_gateways.hung_up_on, short=True),
    Row("F21", "50 readers that do not read", "cut off in time, memory bounded, billed exactly",
        rows_gateways.not_read),
    Row("F22", "200 connections that send half a header", "closed in time, others are served",
        rows_gateways.sent_half_a_header),
    Row("F23", "the gateway's clock jumps back by an hour", "durations stay true, everything is billed",
        rows_gateways.jumping_clock),
    Row("F25", "a gateway killed; two billing workers, two sweepers", "each orphan billed once",
        rows_gateways.swept_twice),
    Row("F27", "no file descriptors left", "the gateway lives, and serves again within 5 s",
        rows_gateways.without_descriptors),
    Row("F28", "a key revoked and a tenant suspended under their streams", "cut off with a reason, and billed exactly",
        rows_gateways.revoked, short=True),
)  # fmt: skip
"""F11 and F18 are kills.py's (Valkey, gateway)."""


def run(platform: Platform, row: Row) -> str:
    """What the row measured. Raises AssertionError where its promise was broken."""
    heal(platform)
    return row.act(platform)
