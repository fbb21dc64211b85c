"""Quotas rebuilt from the ledger equal the counts of the gateways' scripts, whatever billing has recorded by then."""

import asyncio
import contextlib
import random
import threading
from functools import partial

import msgspec
import pytest
import redis

from billing.quotas import rebuild
from core import redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, TenantGrant
from core.errors import NotFound, Unavailable
from core.ids import new_id
from data_plane.gateway.quota.consumption import used_by
from data_plane.gateway.quota.reservation import Settlement
from tests.fixtures import fork_server
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.quota.levels import ask, connected, granted, scripts
from tests.fixtures.together import together
from tests.integration.billing.conftest import PRICES
from tests.integration.billing.test_worker import environment

LIMITS = KeyLimits(tokens_per_month=10**9)
COUNTS = ("month_used", "month_spent_nanos", "spent_nanos", "month_gpu_us")
GPU_US = {"input_gpu_us": 2, "output_gpu_us": 5}


class Platform:
    """Gateways that settle, and the control plane's snapshot."""

    def __init__(self, stage) -> None:
        self.stage = stage
        self.grants: dict[str, TenantGrant] = {}

    def tenant(self, **limits: object) -> str:
        tenant_id = self.stage.tenant()
        self.grants[tenant_id] = TenantGrant(
            tenant_id=tenant_id, status="active", limits=msgspec.structs.replace(AMPLE, **limits), prices=PRICES
        )
        return tenant_id

    def publish(self) -> None:
        for tenant_id, grant in self.grants.items():
            self.stage.redis.hset(redis_keys.snapshot("tenants"), tenant_id, msgspec.json.encode(grant))
            key = KeyGrant(key_id="key_1", tenant_id=tenant_id, scopes=(), limits=LIMITS)
            self.stage.redis.hset(redis_keys.snapshot("keys"), tenant_id, msgspec.json.encode(key))

    def serve(self, *tenant_ids: str, **changes: int) -> None:
        """One request each, reserved and settled by the gateways' own scripts."""
        asyncio.run(self._serve(tenant_ids, changes))

    async def _serve(self, tenant_ids, changes) -> None:
        url = self.stage.redis.connection_pool.connection_kwargs
        address = f"redis://:{url['password']}@{url['host']}:{url['port']}/{url['db']}"
        async with connected(address) as (_, line):
            quota = scripts(line)
            for tenant_id in tenant_ids:
                grant = self.grants[tenant_id]
                key_id = random.choice(["key_1", "key_2"])
                allowed = granted(tenant_id, prices=PRICES, key=LIMITS if key_id == "key_1" else None, key_id=key_id)
                wanted = ask(100)
                await quota.reserve(wanted, allowed, replica_id="rep_1", replica_pages_max=10**6)
                event = self.stage.event(tenant_id, request_id=wanted.request_id, key_id=key_id, **GPU_US, **changes)
                ending = Settlement(
                    request_id=wanted.request_id, tenant_id=tenant_id, replica_id="rep_1",
                    used=used_by(event, grant), event=event,
                )  # fmt: skip
                assert await quota.settle(ending)

    def counts(self) -> dict[str, list[int]]:
        quotas = [redis_keys.tenant_quota(tenant_id) for tenant_id in self.grants]
        quotas += [redis_keys.key_quota(tenant_id, "key_1") for tenant_id in self.grants]
        return {quota: [int(value or 0) for value in self.stage.redis.hmget(quota, COUNTS)] for quota in quotas}

    def lose(self) -> None:
        """Redis loses every count, but not the events that billing has yet to read."""
        for quota in self.counts():
            self.stage.redis.delete(quota)


@pytest.fixture
def platform(stage) -> Platform:
    return Platform(stage)


def test_a_rebuild_restores_the_counted_usage(stage, platform):
    """One part is recorded and trimmed, one is recorded and still in the stream, and one is unread."""
    first, second = platform.tenant(), platform.tenant(count_cached_tokens=False)
    platform.publish()
    platform.serve(*[first, second] * 6, cached_tokens=40)
    stage.drain()
    stage.stream.trim()
    platform.serve(*[first, second] * 4, output_tokens=9)
    stage.drain()
    platform.serve(first, second, second, kv_page_ms=12_345)
    before = platform.counts()
    assert all(min(counts) > 0 for counts in before.values())
    platform.lose()
    rebuilt = rebuild.rebuild(stage.engine, stage.redis)
    assert platform.counts() == before
    assert rebuilt == (2, 2, 4)
    stage.drain()
    assert rebuild.rebuild(stage.engine, stage.redis).corrected == 0


def test_dead_lettered_usage_is_counted(stage, platform):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(tenant_id)
    (entry,) = stage.stream.read(count=10, block_ms=None)
    assert stage.stream.dead_letter(entry, about={"code": "unstorable"}, dead_letters_max=10)
    stage.redis.xdel(redis_keys.USAGE_STREAM, entry.id)
    before = platform.counts()
    platform.lose()
    rebuild.rebuild(stage.engine, stage.redis)
    assert platform.counts() == before


def test_usage_of_earlier_months_counts_as_spending_but_not_for_this_month(stage, platform):
    tenant_id = platform.tenant()
    platform.publish()
    stage.bill(stage.event(tenant_id, settled_at_ms=stage.ago_ms(days=40)))
    rebuild.rebuild(stage.engine, stage.redis)
    tokens, month_nanos, nanos, gpu_us = platform.counts()[redis_keys.tenant_quota(tenant_id)]
    assert (tokens, month_nanos, gpu_us) == (0, 0, 0)
    assert nanos == stage.value("SELECT sum(amount_nanos) FROM usage_records") > 0


def test_a_rebuild_is_exact_while_gateways_settle_and_billing_records(stage, platform):
    """A request settles, and billing would record it, between the reads of Redis and of Postgres."""
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(*[tenant_id] * 5)
    platform.lose()
    billing = threading.Thread(target=stage.drain)

    class Interrupted(redis.Redis):
        """Runs the interruption after the first read."""

        def pipeline(self, *arguments, **options):
            pipe = super().pipeline(*arguments, **options)
            look = pipe.execute

            def execute(*arguments):
                seen = look(*arguments)
                platform.serve(tenant_id, output_tokens=7)
                billing.start()
                billing.join(0.5)
                return seen

            pipe.execute = execute
            return pipe

    with Interrupted(connection_pool=stage.redis.connection_pool) as looking:
        rebuild.rebuild(stage.engine, looking)
    billing.join()
    (recorded,) = stage.rows(
        "SELECT sum(input_tokens + output_tokens) AS t, sum(amount_nanos) AS n, sum(gpu_us) AS g FROM usage_records"
    )
    sums = [recorded["t"], recorded["n"], recorded["n"], recorded["g"]]
    assert platform.counts()[redis_keys.tenant_quota(tenant_id)] == sums
    assert recorded["t"] == 5 * 120 + 107


def test_two_concurrent_rebuilds_add_missing_usage_once(stage, platform):
    """Both would read before either had added anything."""
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(*[tenant_id] * 3)
    before = platform.counts()
    platform.lose()
    looked = threading.Barrier(2)

    class Together(redis.Redis):
        """Continues when the other has read as well, or cannot."""

        def pipeline(self, *arguments, **options):
            pipe = super().pipeline(*arguments, **options)
            look = pipe.execute

            def execute(*arguments):
                seen = look(*arguments)
                with contextlib.suppress(threading.BrokenBarrierError):
                    looked.wait(1)
                return seen

            pipe.execute = execute
            return pipe

    with Together(connection_pool=stage.redis.connection_pool) as looking:
        together(*[partial(rebuild.rebuild, stage.engine, looking)] * 2)
    assert platform.counts() == before


def test_without_a_snapshot_or_for_an_unknown_tenant_nothing_is_changed(stage, platform):
    with pytest.raises(Unavailable, match="control_plane publish"):
        rebuild.rebuild(stage.engine, stage.redis)
    platform.tenant()
    platform.publish()
    with pytest.raises(NotFound):
        rebuild.rebuild(stage.engine, stage.redis, new_id("tn"))


def test_an_empty_ledger_leaves_nothing_to_rebuild(stage):
    assert not rebuild.is_due(stage.engine, stage.redis)
    assert stage.redis.exists(redis_keys.QUOTAS_REBUILT)


def test_the_command_reports_its_result_and_is_in_the_audit_trail(stage, platform, redis_settings, postgres_settings):
    tenant_id = platform.tenant()
    platform.publish()
    platform.serve(tenant_id)
    platform.lose()
    for arguments in (["--tenant", tenant_id], []):
        env = environment(postgres_settings.postgres_dsn, redis_settings.redis_url)
        done = fork_server.run("billing", "rebuild-quotas", *arguments, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1 tenants and 1 keys with limits: ")
        assert platform.counts()[redis_keys.tenant_quota(tenant_id)][0] == 120
    audited = stage.rows("SELECT actor, action, target FROM audit_events ORDER BY created_at")
    assert [tuple(row.values()) for row in audited] == [
        ("operator", "quotas.rebuilt", tenant_id),
        ("operator", "quotas.rebuilt", "all tenants"),
    ]
