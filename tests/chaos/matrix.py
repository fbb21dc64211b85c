"""The fault matrix as data: each row names a fault, a promise, and the code that injects the fault.

Each row gets a complete healthy platform. It returns its measurements or raises AssertionError. A comment names the
faults that are tested elsewhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos import fixture, rows_callers, rows_gateways, rows_redis_data_loss, rows_replicas, rows_stores
from tests.chaos.fixture import heal
from tests.chaos.platform import Platform
from tests.chaos.verdict import emitted, judge


@dataclass(frozen=True)
class Row:
    """One fault. ``short`` rows also run in test_chaos.py.

    ``short_by`` holds the outcomes whose requests may be billed for fewer tokens than were emitted; all other requests
    are billed to the token. The row's times depend on the settings in ``depends_on`` and on ``own``, which only the
    row's own gateways or workers use.
    """

    id: str
    fault: str
    promise: str
    act: Callable[[Platform], str]
    short: bool = False
    short_by: frozenset[str] = frozenset()
    depends_on: tuple[str, ...] = ()
    own: Mapping[str, object] = field(default_factory=dict)

    @property
    def shown_by(self) -> str:
        """The function that injects the fault and checks the promise, by file and name."""
        return f"{self.act.__module__.replace('.', '/')}.py::{self.act.__name__}"


ROWS: Final = (
    Row("F1", "a replica killed before its first byte",
        "retried on another replica: no caller notices more than a delay of 1.2 s",
        rows_replicas.killed_before_its_first_byte, short=True),
    Row("F2", "a replica killed under 50 streams",
        "its streams end with an error event, other streams continue, new streams are served within 2 s",
        rows_replicas.killed_under_streams, short=True, short_by=frozenset({"replica_gone"}),
        depends_on=("replica_poll_ms", "replica_stale_s", "breaker_open_s")),
    Row("F3", "a replica stopped (SIGSTOP)", "its streams end in time, no socket stays open, other requests are served",
        rows_replicas.stopped, short_by=frozenset({"replica_gone", "timeout"}),
        depends_on=("first_byte_s", "inter_token_s", "abort_s")),
    Row("F4", "/health reports healthy and no token arrives",
        "the gateway aborts whole answers and another replica serves them",
        rows_replicas.hung_but_healthy, short=True, depends_on=("engine_stalled_s",)),
    Row("F5", "status 500 for three requests in ten", "amplification at most 1.1x, beyond the default burst",
        rows_replicas.failing_now_and_then, short=True, own=rows_replicas.NEVER_OPEN),
    Row("F6", "garbage, half an event, a line of 40 MB, an empty body", "502, and memory never more than +20 MB",
        rows_replicas.sending_garbage, short=True, own=rows_replicas.NEVER_OPEN),
    Row("F7", "an adapter cannot be loaded on one replica",
        "another replica serves it; at most one of 50 simultaneous first calls fails",
        rows_replicas.without_an_adapter, short=True),
    Row("F12", "Redis 2 s late, then silent",
        "503 at the deadline (250 ms here), p99 at most 60 ms later; running streams end and settle",
        rows_stores.late_and_silent, own=fixture.FAR),
    Row("F13", "FLUSHALL under 20 streams", "no usage is lost or billed twice",
        rows_stores.flushed, short=True),
    Row("F13b", "FLUSHALL, and the billing worker had been down since before 20 streams",
        "gateways send the usage of all streams to billing again", rows_redis_data_loss.unread_events_lost),
    Row("F13c", "Redis restarts from an old copy, in which 20 streams still run that are already billed",
        "quotas match the ledger within 60 s", rows_redis_data_loss.restored_from_an_old_copy,
        depends_on=("billing_quota_repair_s",), own={"billing_quota_drift_s": rows_redis_data_loss.DRIFT_S}),
    Row("F14", "Postgres killed and down for 60 s", "streams are served normally; then all are billed once",
        rows_stores.without_postgres, depends_on=("billing_backoff_ms_max",)),
    Row("F18b", "a gateway killed under 20 whole answers",
        "each is billed once, at most 64 tokens short, and no reservation stays held",
        rows_gateways.killed_under_whole_answers, short_by=frozenset({"gateway_gone"}),
        depends_on=("lease_s", "sweep_s")),
    Row("F19", "SIGTERM under 100 streams, one of which needs most of the drain time",
        "all end whole, and the gateway exits with status 0", rows_gateways.terminated, own=rows_gateways.DRAIN),
    Row("F20", "callers disconnect in mid-stream (FIN), are cut off (RST), or disappear without a packet",
        "the gateway aborts the engine's request within 1 s after the kernel knows, and bills each exactly",
        rows_callers.disconnected, short=True, depends_on=("client_tcp_timeout_s", "abort_s")),
    Row("F21", "200 readers of 1 byte per second", "cut off within 30 s, memory at most +50 MB, billed exactly",
        rows_callers.read_slowly, own=rows_callers.READ_SLOWLY),
    Row("F22", "500 callers send a request head byte by byte, 500 a body",
        "all cut off; once they are connected, the p99 of other callers at most doubles",
        rows_callers.sent_slowly, own=rows_callers.SENT_SLOWLY),
    Row("F23", "the gateway's clock jumps by an hour and by 40 days, ahead and back",
        "durations stay correct, and the times of all records are within 2 s of the database's clock",
        rows_gateways.jumping_clock),
    Row("F25", "a gateway killed; two billing workers, two sweepers", "each orphan billed once",
        rows_gateways.swept_twice, short_by=frozenset({"gateway_gone"}), depends_on=("lease_s", "sweep_s")),
    Row("F27", "no file descriptors left", "the gateway survives and serves again within 5 s",
        rows_gateways.without_descriptors),
    Row("F27b", "no memory left (RLIMIT_DATA) under 400 streams",
        "the gateway survives or is restarted, serves again within 5 s, and bills each stream, at most 64 tokens short",
        rows_gateways.without_memory, short_by=frozenset({"gateway_gone", "replica_gone"})),
    Row("F28", "a key revoked and a tenant suspended under their streams",
        "cut off with an error code, and billed exactly",
        rows_callers.revoked, short=True, depends_on=("access_check_s", "snapshot_block_ms")),
    Row("F28b", "a spending ceiling and a monthly token limit lowered to zero under streams",
        "running streams keep their reservations, end whole and are billed exactly; the next request is refused",
        rows_callers.exhausted, short=True),
)  # fmt: skip
"""kills.py holds F11, F16 and F18 (Valkey, billing, gateway). F14 needs a platform with its own Postgres."""


def run(platform: Platform, row: Row) -> str:
    """Run a row and return its measurements as text.

    Raises AssertionError if the row's promise is broken, or if witnesses, ledger, usage report and Redis disagree about
    the row's requests.
    """
    heal(platform)
    before, others = frozenset(emitted(platform)), set(platform.tenants.values())
    measured = row.act(platform)
    judge(platform, before, crashed=row.short_by, tenants=set(platform.tenants.values()) - others).check()
    return measured
