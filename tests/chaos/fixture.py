"""Set-up of the platform for the fault matrix, its repair between two rows, and helpers that the rows share."""

import signal
from pathlib import Path

from tests.chaos.ledger_check import Record, recorded
from tests.chaos.load import CallResult, Load
from tests.chaos.platform import Platform
from tests.conftest import wait_until

TOKENS = 60
FAR = {"reserve_deadline_ms": 250}  # settings of the gateway that reaches Redis through a proxy
# The rows share one gateway's retry budget. Only the row that tests the budget uses the default.
NEAR = {"gw_one": {"headers_s": 2, "retry_burst": 1000}, "gw_two": {"headers_s": 2}}


def prepare(platform: Platform) -> None:
    """Start two replicas behind proxies, two gateways, and a third gateway that reaches Redis through a proxy."""
    for name in ("rep_one", "rep_two"):
        platform.witness(name, proxied=True)
    for name, settings in NEAR.items():
        platform.gateway(name, **settings)
    platform.far_gateway("gw_far", **FAR)


def heal(platform: Platform) -> None:
    """Restart killed processes, resume stopped ones, remove faults, and wait until every gateway serves."""
    for name, process in list(platform.running.items()):
        if process.poll() is not None:
            platform.restart(name)
        else:
            process.send_signal(signal.SIGCONT)
    for proxy in platform.proxies.values():
        proxy.set()
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=TOKENS)
    key = next(iter(platform.tenants), None) or platform.tenant()  # the first tenant is for these checks

    def healthy() -> bool:
        results = Load(list(platform.gateways.values()), key, 12, stream=False, max_tokens=1, spread_s=0.1).join()
        return all(one.end == "done" for one in results)

    wait_until(healthy, timeout_s=40, what="the platform to be healthy")


def unary_calls(gateway: str, key: str, calls: int = 10, **how: object) -> list[CallResult]:
    """Request ``calls`` whole answers of a few tokens and return their results."""
    return Load([gateway], key, calls, **{"stream": False, "max_tokens": 5, **how}).join()


def assert_served(results: list[CallResult]) -> None:
    failed = [one for one in results if one.end != "done"]
    assert not failed, f"{len(failed)} of {len(results)} calls failed: {failed[:2]}"


def memory_bytes(pid: int, kind: str = "VmRSS") -> int:
    """Memory of a process by its field name in proc(5); resident memory by default."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0]) * 1024


def watch_memory(pid: int) -> int:
    """Resident memory of a process. Resets its peak, ``VmHWM`` (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_bytes(pid)


def records(platform: Platform, key: str) -> list[Record]:
    """Usage records of a key's tenant so far."""
    return [one for one in recorded(platform).values() if one["tenant_id"] == platform.tenants[key]]
