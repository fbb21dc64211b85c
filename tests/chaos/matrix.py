"""The fault matrix as data: what is broken, what must hold, and the code that breaks it. It names what it leaves out.

Each row is given a whole platform that is well; it returns what it measured, or raises AssertionError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos import rows_callers, rows_forgotten, rows_gateways, rows_replicas, rows_stores
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
    Row("F1", "a replica killed before its first byte", "tried elsewhere: no caller notices more than 1.2 s",
        rows_replicas.killed_before_its_first_byte, short=True),
    Row("F2", "a replica killed under 50 streams",
        "its streams end with an error event, the others go on, new ones are served within 2 s",
        rows_replicas.killed_under_streams, short=True),
    Row("F3", "a replica stopped (SIGSTOP)", "its streams end in time, no socket is left, others are served",
        rows_replicas.stopped),
    Row("F4", "/health is well and no token comes", "whole answers are given up and served elsewhere",
        rows_replicas.hung_but_healthy, short=True),
    Row("F5", "500 for three requests in ten", "amplification at most 1.1x",
        rows_replicas.failing_now_and_then, short=True),
    Row("F6", "garbage, half an event, a line of 10 MB, an empty body", "502, and memory stays bounded",
        rows_replicas.talking_garbage, short=True),
    Row("F7", "an adapter cannot be loaded on one replica", "served by another",
        rows_replicas.without_an_adapter, short=True),
    Row("F12", "Redis 2 s late, then silent",
        "503 at the deadline (250 ms here), p99 at most 60 ms later; what ran ends and settles",
        rows_stores.late_and_silent),
    Row("F13", "FLUSHALL under 20 streams", "nothing that was used is lost or billed twice",
        rows_stores.emptied, short=True),
    Row("F13b", "FLUSHALL, and billing had been away since before 20 streams",
        "gateways tell billing again of all of them", rows_forgotten.unread),
    Row("F13c", "Redis comes back from an old copy, in which 20 billed streams run",
        "quotas are as the ledger within 60 s", rows_forgotten.an_old_copy),
    Row("F14", "Postgres killed, and away for 60 s", "streams are served as ever; then all are billed, once",
        rows_stores.without_postgres),
    Row("F18b", "a gateway killed under 20 whole answers", "none of them is billed, and nothing stays held",
        rows_gateways.killed_under_whole_answers),
    Row("F19", "SIGTERM under 100 streams", "all end whole, and the gateway leaves with status 0",
        rows_gateways.told_to_stop),
    Row("F20", "callers hang up in mid-stream (FIN), are cut off (RST), or vanish without a packet",
        "the engine is told within 1 s of when the kernel knows, each billed exactly",
        rows_callers.hung_up_on, short=True),
    Row("F21", "200 readers of 1 byte a second", "cut off within 30 s, memory at most +50 MB, billed exactly",
        rows_callers.read_slowly),
    Row("F22", "500 callers send a head by bytes, 500 a body", "all cut off, others' p99 at most doubles",
        rows_callers.sent_slowly),
    Row("F23", "the gateway's clock jumps back by an hour", "durations stay true, everything is billed",
        rows_gateways.jumping_clock),
    Row("F25", "a gateway killed; two billing workers, two sweepers", "each orphan billed once",
        rows_gateways.swept_twice),
    Row("F27", "no file descriptors left", "the gateway lives, and serves again within 5 s",
        rows_gateways.without_descriptors),
    Row("F28", "a key revoked and a tenant suspended under their streams", "cut off with a reason, and billed exactly",
        rows_callers.revoked, short=True),
)  # fmt: skip
"""F11, F16 and F18 are kills.py's (Valkey, billing, gateway). F14 needs a platform with a Postgres of its own."""


def run(platform: Platform, row: Row) -> str:
    """What the row measured. Raises AssertionError where its promise was broken."""
    heal(platform)
    return row.act(platform)
