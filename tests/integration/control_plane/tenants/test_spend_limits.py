"""Spending limits and limits of single keys: set through the API and published for gateways."""

from datetime import timedelta

import msgspec
import pytest

from control_plane.dollars import with_dollars
from control_plane.settings import WorkerSettings
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import clock, redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, Prices
from tests.fixtures.control_plane.api import LIMITS, PRICES
from tests.fixtures.control_plane.usage import used


@pytest.fixture
def charge(record):
    """Record usage of a tenant that settled this many days ago; returns its amount in nanodollars."""

    def charge(tenant_id: str, *, days_ago: int) -> int:
        quantities = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 1000, "kv_page_ms": 0}
        record(used(tenant_id, clock.now() - timedelta(days=days_ago), **quantities))
        return 1000 * PRICES["output_nanos"]

    return charge


def test_a_spend_limit_is_published_as_a_ceiling_above_earlier_months_charges(api, charge, grant):
    plan = api.plan(limits={"spend_nanos_per_month": 5_000_000_000})
    tenant = api.tenant(plan["name"])
    before = charge(tenant.id, days_ago=40)
    charge(tenant.id, days_ago=0)
    found = grant(tenant)
    assert found.prices == Prices(**PRICES)
    assert (found.charged_nanos, found.spend_ceiling_nanos) == (before, before + 5_000_000_000)
    api.admin.patch(
        f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"spend_nanos_per_month": 1}}
    ).raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == before + 1


def test_late_usage_of_an_earlier_month_raises_the_ceiling_when_it_is_counted_again(
    api, relay, redis, engine, charge, grant
):
    """The same round publishes the new ceilings when a month starts, because more was charged before it."""
    plan = api.plan(limits={"spend_nanos_per_month": 1000})
    tenant, other = api.tenant(plan["name"]), api.tenant(plan["name"])
    assert grant(tenant).spend_ceiling_nanos == 1000
    late = charge(tenant.id, days_ago=40)
    ceilings = SpendCeilings(engine, redis, WorkerSettings(spend_ceiling_recount_s=3600))
    ceilings.run_once()
    with engine.connect() as connection:
        fields = connection.exec_driver_sql("SELECT field FROM outbox").scalars().all()
    assert fields == [tenant.id]
    assert grant(tenant).spend_ceiling_nanos == late + 1000
    assert grant(other).spend_ceiling_nanos == 1000
    charge(tenant.id, days_ago=40)
    ceilings.run_once()  # not yet time to recount
    assert not relay.run_once()


def test_a_key_created_with_limits_keeps_and_publishes_them(api, redis, grant):
    tenant = api.tenant()
    limits = {"requests_per_minute": 5, "spend_nanos_per_month": 1_000_000}
    made = tenant.http.post("/api/v1/api-keys", json={"name": "ci", "limits": limits}).raise_for_status().json()
    everything = dict.fromkeys(KeyLimits.__struct_fields__) | limits
    assert made["limits"] == with_dollars(everything)
    assert tenant.http.get(f"/api/v1/api-keys/{made['id']}").json()["limits"] == with_dollars(everything)
    assert tenant.http.get(f"/api/v1/api-keys/{tenant.key_id}").json()["limits"] is None
    grant(tenant)
    grants = [msgspec.json.decode(value, type=KeyGrant) for value in redis.hvals(redis_keys.snapshot("keys"))]
    assert {each.key_id: each.limits for each in grants} == {tenant.key_id: None, made["id"]: KeyLimits(**limits)}


def test_a_limited_key_cannot_create_an_unlimited_one(api):
    tenant = api.tenant()
    limited = tenant.http.post("/api/v1/api-keys", json={"limits": {"tokens_per_month": 10}}).json()
    client = api.client(limited["key"])
    refused = client.post("/api/v1/api-keys", json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "key_limited")
    assert client.post("/api/v1/api-keys", json={"scopes": ["usage:read"]}).status_code == 201


def test_an_expired_hold_is_not_shown_as_held(api, redis):
    tenant = api.tenant()
    redis.hset(redis_keys.tenant_quota(tenant.id), mapping={"concurrent": 2, "kv_pages": 9, "month_held": 50})
    redis.zadd(redis_keys.tenant_leases(tenant.id), {"req_dead": 1, "req_alive": 10**14})
    for request_id in ("req_dead", "req_alive"):
        held = {"pages": 4, "input": 20, "output": 5, "nanos": 0}
        redis.hset(redis_keys.reservation(tenant.id, request_id), mapping=held)
    shown = tenant.http.get("/api/v1/quota").json()
    assert shown["held"] == with_dollars(
        {"concurrent_requests": 1, "kv_pages": 5, "tokens": 25, "gpu_seconds": 0, "spend_nanos": 0}
    )
    assert shown["limits"] == with_dollars(LIMITS)
