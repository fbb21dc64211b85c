"""The platform on which the fault matrix runs, and how it is made well again between two rows."""

import signal
from pathlib import Path

from tests.chaos.books import Record, recorded
from tests.chaos.load import Heard, Load
from tests.chaos.platform import Platform
from tests.conftest import wait_until

TOKENS = 60
FAR = {"reserve_deadline_ms": 250}  # of the gateway whose Redis is made slow
# The rows share one process's budget for second attempts; only the row that is about it has the usual one.
NEAR = {"gw_one": {"headers_s": 2, "retry_burst": 1000}, "gw_two": {"headers_s": 2}}


def furnish(platform: Platform) -> None:
    """Two replicas behind proxies, two gateways with Redis at hand, and a third that reaches it through a proxy."""
    for name in ("rep_one", "rep_two"):
        platform.witness(name, proxied=True)
    for name, settings in NEAR.items():
        platform.gateway(name, **settings)
    platform.far_gateway("gw_far", **FAR)


def heal(platform: Platform) -> None:
    """Start what was killed, wake what was stopped, take faults away, and wait until every gateway serves."""
    for name, process in list(platform.running.items()):
        if process.poll() is not None:
            platform.restart(name)
        else:
            process.send_signal(signal.SIGCONT)
    for proxy in platform.proxies.values():
        proxy.set()
    for witness in platform.witnesses.values():
        witness.faults(output_tokens=TOKENS)
    key = next(iter(platform.tenants), None) or platform.tenant()  # the first is there to look after the others

    def well() -> bool:
        heard = Load(list(platform.gateways.values()), key, 12, stream=False, max_tokens=1, spread_s=0.1).join()
        return all(one.end == "done" for one in heard)

    wait_until(well, timeout_s=40, what="the platform to be well")


def whole(gateway: str, key: str, calls: int = 10, **how: object) -> list[Heard]:
    """So many whole answers of a few tokens, and what was heard."""
    return Load([gateway], key, calls, **{"stream": False, "max_tokens": 5, **how}).join()


def assert_served(heard: list[Heard]) -> None:
    failed = [one for one in heard if one.end != "done"]
    assert not failed, f"{len(failed)} of {len(heard)} calls failed: {failed[:2]}"


def memory_bytes(pid: int, kind: str = "VmRSS") -> int:
    """Memory of a process, by its name in proc(5); the resident one where nothing else is asked for."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0]) * 1024


def watch_memory(pid: int) -> int:
    """Resident memory of a process; its peak, ``VmHWM``, is counted anew from here on (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_bytes(pid)


def records(platform: Platform, key: str) -> list[Record]:
    """What a key's tenant has been billed so far."""
    return [one for one in recorded(platform).values() if one["tenant_id"] == platform.tenants[key]]
