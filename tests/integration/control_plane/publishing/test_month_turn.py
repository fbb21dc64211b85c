"""At the turn of the month all limited tenants get new ceilings at once, and a key that is revoked meanwhile does not
wait for them.
"""

import threading
import time

import msgspec
import pytest

from control_plane.settings import WorkerSettings
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import redis_keys
from core.api_keys import hash_key
from core.contracts.grants import TenantGrant
from tests.fixtures.control_plane.api import PEPPER

EARLIER = """
INSERT INTO usage_months (tenant_id, month, key_id, amount_nanos)
SELECT id, date_trunc('month', now(), 'UTC') - interval '1 month', 'key_1', 700 FROM tenants
"""
MORE = """
INSERT INTO tenants (id, name, plan_id, status, limit_overrides, created_at)
SELECT 'tn_' || n, 'Many', plan_id, 'active', '{}', now() FROM tenants, generate_series(2, :tenants) n
"""
LIMITS = """
INSERT INTO spend_limits (id, tenant_id, scope, subject_id, window_kind, amount_nanos, created_at, updated_at)
SELECT 'spl_' || id, id, 'tenant', '', 'day', 1000000, now(), now() FROM tenants
"""


@pytest.fixture
def turned_month(api, engine, redis, relay):
    """A tenant among many whose published ceilings have become too low, and the round that finds them."""

    def turn(tenants: int):
        tenant = api.tenant(api.plan(limits={"spend_nanos_per_month": 1000})["name"])
        with engine.begin() as connection:
            connection.exec_driver_sql(MORE.replace(":tenants", str(tenants)))
            connection.exec_driver_sql(LIMITS)
        relay.rebuild("asked")
        with engine.begin() as connection:
            connection.exec_driver_sql(EARLIER)
        return tenant, SpendCeilings(engine, redis, WorkerSettings())

    return turn


def is_revoked(redis, tenant) -> bool:
    return not redis.hexists(redis_keys.snapshot("keys"), hash_key(tenant.key, PEPPER.encode()))


def ceilings(redis) -> set[int]:
    values = redis.hvals(redis_keys.snapshot("tenants"))
    return {msgspec.json.decode(value, type=TenantGrant).spend_ceiling_nanos for value in values}


def test_a_revoked_key_passes_the_ceilings_that_wait(turned_month, relay, redis):
    tenant, look = turned_month(1_200)
    look.run_once()
    tenant.http.delete(f"/api/v1/api-keys/{tenant.key_id}").raise_for_status()
    assert relay.run_once(), "more wait than one batch"
    assert is_revoked(redis, tenant)
    assert ceilings(redis) == {1000, 1700}
    while relay.run_once():
        pass
    assert ceilings(redis) == {1700}


@pytest.mark.quiet
def test_the_ceilings_of_ten_thousand_tenants_are_published_in_ten_seconds(turned_month, relay, redis):
    tenant, look = turned_month(10_000)
    begun = time.monotonic()
    look.run_once()
    read_s = time.monotonic() - begun

    def publish():
        while relay.run_once():
            pass

    publishing = threading.Thread(target=publish)
    publishing.start()
    time.sleep(0.2)  # the backlog is being published
    revoking = time.monotonic()
    tenant.http.delete(f"/api/v1/api-keys/{tenant.key_id}").raise_for_status()
    while not is_revoked(redis, tenant):
        time.sleep(0.01)
    revoked_s = time.monotonic() - revoking
    publishing.join()
    published_s = time.monotonic() - begun
    print(f"read in {read_s:.1f} s, all published after {published_s:.1f} s, a key revoked in {revoked_s:.2f} s")
    assert ceilings(redis) == {1700}
    assert read_s < 4
    assert revoked_s < 2
    assert published_s < 10
