"""The fault matrix as data: what is broken, what must hold, and the code that breaks it. It names what it leaves out.

Each row is given a whole platform that is well; it returns what it measured, or raises AssertionError.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos import rows_callers, rows_forgotten, rows_gateways, rows_replicas, rows_stores, standing
from tests.chaos.platform import Platform
from tests.chaos.standing import heal
from tests.chaos.verdict import emitted, judge


@dataclass(frozen=True)
class Row:
    """``short`` rows belong to the suite that every change runs. ``short_by`` are the outcomes whose requests may be
    billed less than was emitted; all others are billed to the token. Its times rest on the settings ``rests_on``, and
    on ``own``, which only its own gateways or workers have.
    """

    id: str
    fault: str
    promise: str
    act: Callable[[Platform], str]
    short: bool = False
    short_by: frozenset[str] = frozenset()
    rests_on: tuple[str, ...] = ()
    own: Mapping[str, object] = field(default_factory=dict)


ROWS: Final = (
    Row("F1", "a replica killed before its first byte", "tried elsewhere: no caller notices more than 1.2 s",
        rows_replicas.killed_before_its_first_byte, short=True),
    Row("F2", "a replica killed under 50 streams",
        "its streams end with an error event, the others go on, new ones are served within 2 s",
        rows_replicas.killed_under_streams, short=True, short_by=frozenset({"replica_gone"}),
        rests_on=("replica_poll_ms", "replica_stale_s", "breaker_open_s")),
    Row("F3", "a replica stopped (SIGSTOP)", "its streams end in time, no socket is left, others are served",
        rows_replicas.stopped, short_by=frozenset({"replica_gone", "timeout"}),
        rests_on=("first_byte_s", "inter_token_s", "abort_s")),
    Row("F4", "/health is well and no token comes", "whole answers are given up and served elsewhere",
        rows_replicas.hung_but_healthy, short=True, rests_on=("engine_stalled_s", "engine_liveness_poll_ms")),
    Row("F5", "500 for three requests in ten", "amplification at most 1.1x, beyond the burst that is shipped",
        rows_replicas.failing_now_and_then, short=True, own=rows_replicas.THRIFTY),
    Row("F6", "garbage, half an event, a line of 40 MB, an empty body", "502, and memory never more than +20 MB",
        rows_replicas.talking_garbage, short=True, own=rows_replicas.THRIFTY),
    Row("F7", "an adapter cannot be loaded on one replica",
        "served by another; of 50 first calls at once at most one fails",
        rows_replicas.without_an_adapter, short=True),
    Row("F12", "Redis 2 s late, then silent",
        "503 at the deadline (250 ms here), p99 at most 60 ms later; what ran ends and settles",
        rows_stores.late_and_silent, own=standing.FAR),
    Row("F13", "FLUSHALL under 20 streams", "nothing that was used is lost or billed twice",
        rows_stores.emptied, short=True),
    Row("F13b", "FLUSHALL, and billing had been away since before 20 streams",
        "gateways tell billing again of all of them", rows_forgotten.unread),
    Row("F13c", "Redis comes back from an old copy, in which 20 billed streams run",
        "quotas are as the ledger within 60 s", rows_forgotten.an_old_copy, rests_on=("billing_quota_repair_s",),
        own={"billing_quota_drift_s": rows_forgotten.DRIFT_S}),
    Row("F14", "Postgres killed, and away for 60 s", "streams are served as ever; then all are billed, once",
        rows_stores.without_postgres, rests_on=("billing_backoff_ms_max",)),
    Row("F18b", "a gateway killed under 20 whole answers", "none of them is billed, and nothing stays held",
        rows_gateways.killed_under_whole_answers, short_by=frozenset({"gateway_gone"}),
        rests_on=("lease_s", "sweep_s")),
    Row("F19", "SIGTERM under 100 streams, one of which takes most of the time there is to end",
        "all end whole, and the gateway leaves with status 0", rows_gateways.told_to_stop, own=rows_gateways.DRAIN),
    Row("F20", "callers hang up in mid-stream (FIN), are cut off (RST), or vanish without a packet",
        "the engine is told within 1 s of when the kernel knows, each billed exactly",
        rows_callers.hung_up_on, short=True, rests_on=("client_tcp_timeout_s", "abort_s")),
    Row("F21", "200 readers of 1 byte a second", "cut off within 30 s, memory at most +50 MB, billed exactly",
        rows_callers.read_slowly, own=rows_callers.READ_SLOWLY),
    Row("F22", "500 callers send a head by bytes, 500 a body",
        "all cut off; once they are there others' p99 at most doubles",
        rows_callers.sent_slowly, own=rows_callers.SENT_SLOWLY),
    Row("F23", "the gateway's clock jumps by an hour and by 40 days, ahead and back",
        "durations stay true, and all is billed within 2 s of the database's time", rows_gateways.jumping_clock),
    Row("F25", "a gateway killed; two billing workers, two sweepers", "each orphan billed once",
        rows_gateways.swept_twice, short_by=frozenset({"gateway_gone"}), rests_on=("lease_s", "sweep_s")),
    Row("F27", "no file descriptors left", "the gateway lives, and serves again within 5 s",
        rows_gateways.without_descriptors),
    Row("F27b", "no memory left (RLIMIT_DATA) under 400 streams",
        "the gateway lives or is started again, serves again within 5 s, and nothing is lost",
        rows_gateways.without_memory, short_by=frozenset({"gateway_gone"})),
    Row("F28", "a key revoked and a tenant suspended under their streams", "cut off with a reason, and billed exactly",
        rows_callers.revoked, short=True, rests_on=("access_check_s", "snapshot_block_ms")),
    Row("F28b", "a spending ceiling and a month's tokens lowered to nothing under streams",
        "what runs has what it holds, ends whole and is billed exactly; the next request is refused",
        rows_callers.exhausted, short=True),
)  # fmt: skip
"""F11, F16 and F18 are kills.py's (Valkey, billing, gateway). F14 needs a platform with a Postgres of its own."""


def run(platform: Platform, row: Row) -> str:
    """What the row measured. Raises AssertionError where its promise was broken, or witnesses, ledger, usage report and
    Redis do not agree on all that was asked for.
    """
    heal(platform)
    before, others = frozenset(emitted(platform)), set(platform.tenants.values())
    measured = row.act(platform)
    judge(platform, before, crashed=row.short_by, tenants=set(platform.tenants.values()) - others).check()
    return measured
