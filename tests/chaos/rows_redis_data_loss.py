"""Rows of the fault matrix in which Redis loses unread usage events or restarts from an old copy."""

import shutil
import time

from core import redis_keys
from tests.chaos.fixture import assert_served
from tests.chaos.load import Load
from tests.chaos.platform import Platform
from tests.chaos.verdict import emitted, judge, quiet
from tests.conftest import wait_until

DRIFT_S = 5
_FORGOTTEN_S = 8  # longer than gateways keep recorded settlements


def unread_events_lost(platform: Platform) -> str:
    """Redis loses settlements that the ledger does not have yet."""
    before, key = frozenset(emitted(platform)), platform.tenant()
    platform.kill("billing")
    results = Load(list(platform.gateways.values())[:2], key, 20, max_tokens=60, spread_s=0.5).join()
    assert_served(results)
    time.sleep(_FORGOTTEN_S)
    published = {name: platform.client.dump(name) for name in platform.client.scan_iter("tenora:*")
                 if name.startswith((b"tenora:snapshot", b"tenora:blob"))}  # fmt: skip
    platform.client.flushall()
    for name, value in published.items():
        platform.client.restore(name, 0, value)
    platform.restart("billing")
    wait_until(
        lambda: platform.client.exists(redis_keys.QUOTAS_REBUILT), timeout_s=30, what="billing to restore the quotas"
    )
    wait_until(lambda: platform.client.xlen(redis_keys.USAGE_STREAM), what="the settlements to be sent again")
    verdict = judge(platform, before, results=results)
    verdict.check()
    assert verdict.exact == verdict.requests == len(results)
    return f"{verdict.requests} requests, all billed exactly"


def restored_from_an_old_copy(platform: Platform) -> str:
    """Streams that run in the copy are already billed when Redis restarts. Quotas are correct within a minute."""
    before, key, gateways = frozenset(emitted(platform)), platform.tenant(), list(platform.gateways.values())[:2]
    platform.kill("billing")
    platform.billing(QUOTA_DRIFT_S=str(DRIFT_S))
    load = Load(gateways, key, 20, max_tokens=60, spread_s=0.5)
    wait_until(lambda: load.begun == 20, what="streams to run")
    time.sleep(0.5)
    folder, copy = platform.folder / "valkey", platform.folder / "valkey-copy"
    shutil.copytree(folder, copy)
    results = load.join() + Load(gateways, key, 20, max_tokens=60, spread_s=0.5).join()
    assert_served(results)
    quiet(platform)
    time.sleep(_FORGOTTEN_S)
    counted = _counted(platform, key)
    platform.kill("valkey")
    shutil.rmtree(folder)
    shutil.move(copy, folder)
    platform.restart("valkey")
    began = time.monotonic()
    assert _counted(platform, key) < counted
    try:
        verdict = wait_until(lambda: _right(platform, before, results), timeout_s=60, what="quotas to match the ledger")
    finally:
        platform.retire("billing")
        platform.billing()
    assert verdict.exact == verdict.requests == len(results)
    return f"{verdict.requests} requests, all billed exactly; quotas correct {time.monotonic() - began:.0f} s later"


def _counted(platform: Platform, key: str) -> int:
    return int(platform.client.hget(redis_keys.tenant_quota(platform.tenants[key]), "month_used") or 0)


def _right(platform: Platform, before: frozenset[str], results: list) -> object:
    verdict = judge(platform, before, results=results)
    return None if verdict.problems else verdict
