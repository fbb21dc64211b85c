"""Spending limits and limits of single keys: set through the API and published for gateways."""

from datetime import timedelta

import msgspec
import pytest

from billing.usage.recording import RecordingLimits, record
from control_plane.dollars import with_dollars
from control_plane.settings import WorkerSettings
from control_plane.tenants.spend_ceilings import SpendCeilings
from core import clock, redis_keys
from core.contracts.grants import KeyGrant, KeyLimits, Prices, TenantGrant
from core.contracts.usage import UsageEvent
from core.db import unit_of_work
from core.ids import new_id
from core.rating import rate
from tests.fixtures.control_plane.api import LIMITS, PRICES


def grant(redis, tenant_id: str) -> TenantGrant:
    return msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant_id), type=TenantGrant)


RECORDING = RecordingLimits(
    clock_skew=timedelta(minutes=5), late_max=timedelta(days=400), price_age_max=timedelta(days=1)
)


@pytest.fixture
def charge(engine):
    """Record usage of a tenant that settled this many days ago; returns its amount in nanodollars."""

    def charge(tenant_id: str, *, days_ago: int, output_tokens: int = 1000) -> int:
        settled = clock.to_ms(clock.now() - timedelta(days=days_ago))
        event = UsageEvent(
            request_id=new_id("req"), tenant_id=tenant_id, key_id="key_1", base_model="m", adapter_id=None,
            revision_id=None, replica_id="rep_1", outcome="done", started_at_ms=settled, settled_at_ms=settled,
            input_tokens=0, cached_tokens=0, output_tokens=output_tokens, kv_page_ms=0,
        )  # fmt: skip
        with unit_of_work(engine) as session:
            assert record(session, {b"1-0": event}, RECORDING).recorded
        return output_tokens * PRICES["output_nanos"]

    return charge


def test_a_spend_limit_is_published_as_a_ceiling_above_earlier_months_charges(api, relay, redis, charge):
    plan = api.plan(limits={"spend_nanos_per_month": 5_000_000_000})
    tenant = api.tenant(plan["name"])
    before = charge(tenant.id, days_ago=40)
    charge(tenant.id, days_ago=0)
    while relay.run_once():
        pass
    found = grant(redis, tenant.id)
    assert found.prices == Prices(**PRICES)
    assert (found.charged_nanos, found.spend_ceiling_nanos) == (before, before + 5_000_000_000)
    api.admin.patch(
        f"/api/v1/admin/tenants/{tenant.id}", json={"limits": {"spend_nanos_per_month": 1}}
    ).raise_for_status()
    while relay.run_once():
        pass
    assert grant(redis, tenant.id).spend_ceiling_nanos == before + 1


def test_without_a_limit_there_is_no_ceiling(api, relay, redis):
    tenant = api.tenant()
    while relay.run_once():
        pass
    assert grant(redis, tenant.id).spend_ceiling_nanos is None


def test_late_usage_of_an_earlier_month_raises_the_ceiling_when_it_is_counted_again(api, relay, redis, engine, charge):
    """The same round publishes the new ceilings when a month starts, because more was charged before it."""
    plan = api.plan(limits={"spend_nanos_per_month": 1000})
    tenant, other = api.tenant(plan["name"]), api.tenant(plan["name"])
    while relay.run_once():
        pass
    late = charge(tenant.id, days_ago=40)
    ceilings = SpendCeilings(engine, redis, WorkerSettings(spend_ceiling_recount_s=3600))
    ceilings.run_once()
    with engine.connect() as connection:
        fields = connection.exec_driver_sql("SELECT field FROM outbox").scalars().all()
    assert fields == [tenant.id]
    while relay.run_once():
        pass
    assert grant(redis, tenant.id).spend_ceiling_nanos == late + 1000
    assert grant(redis, other.id).spend_ceiling_nanos == 1000
    charge(tenant.id, days_ago=40)
    ceilings.run_once()  # not yet time to recount
    assert not relay.run_once()


def test_a_key_created_with_limits_keeps_and_publishes_them(api, relay, redis, engine):
    tenant = api.tenant()
    limits = {"requests_per_minute": 5, "spend_nanos_per_month": 1_000_000}
    made = tenant.http.post("/api/v1/api-keys", json={"name": "ci", "limits": limits}).raise_for_status().json()
    everything = dict.fromkeys(KeyLimits.__struct_fields__) | limits
    assert made["limits"] == with_dollars(everything)
    assert tenant.http.get(f"/api/v1/api-keys/{made['id']}").json()["limits"] == with_dollars(everything)
    assert tenant.http.get(f"/api/v1/api-keys/{tenant.key_id}").json()["limits"] is None
    while relay.run_once():
        pass
    grants = [msgspec.json.decode(value, type=KeyGrant) for value in redis.hvals(redis_keys.snapshot("keys"))]
    assert {each.key_id: each.limits for each in grants} == {tenant.key_id: None, made["id"]: KeyLimits(**limits)}


def test_a_limited_key_cannot_create_an_unlimited_one(api):
    tenant = api.tenant()
    limited = tenant.http.post("/api/v1/api-keys", json={"limits": {"tokens_per_month": 10}}).json()
    client = api.client(limited["key"])
    refused = client.post("/api/v1/api-keys", json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "key_limited")
    assert client.post("/api/v1/api-keys", json={"scopes": ["usage:read"]}).status_code == 201


@pytest.mark.parametrize(
    "wrong", [{"tokens_per_month": 0}, {"kv_pages": 0}, {"adapters": 3}, {"spend_nanos_per_month": 2**60}]
)
def test_a_key_limit_out_of_bounds_is_refused_by_name(api, wrong):
    refused = api.tenant().http.post("/api/v1/api-keys", json={"limits": wrong})
    assert refused.status_code == 400
    assert next(iter(wrong)) in refused.text


def test_an_expired_hold_is_not_shown_as_held(api, redis):
    tenant = api.tenant()
    redis.hset(redis_keys.tenant_quota(tenant.id), mapping={"concurrent": 2, "kv_pages": 9, "month_held": 50})
    redis.zadd(redis_keys.tenant_leases(tenant.id), {"req_dead": 1, "req_alive": 10**14})
    for request_id in ("req_dead", "req_alive"):
        held = {"pages": 4, "input": 20, "output": 5, "nanos": 0}
        redis.hset(redis_keys.reservation(tenant.id, request_id), mapping=held)
    shown = tenant.http.get("/api/v1/quota").json()
    assert shown["held"] == with_dollars({"concurrent_requests": 1, "kv_pages": 5, "tokens": 25, "spend_nanos": 0})
    assert shown["limits"] == with_dollars(LIMITS)


def test_prices_are_published_with_the_version_that_running_requests_are_charged_at(api, relay, redis, engine):
    """A price that rises during a request does not exceed its reservation: the request is charged the reserved
    price.
    """
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    while relay.run_once():
        pass
    before = grant(redis, tenant.id)
    dearer = {name: nanos * 10 for name, nanos in PRICES.items()}
    answer = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/versions", json={"limits": LIMITS, "prices": dearer})
    answer.raise_for_status()
    while relay.run_once():
        pass
    after = grant(redis, tenant.id)
    assert before.price_version_id != after.price_version_id
    assert after.prices == Prices(**dearer)
    now = clock.now_ms()
    events = [
        UsageEvent(
            request_id=new_id("req"), tenant_id=tenant.id, key_id="key_1", base_model="m", adapter_id=None,
            revision_id=None, replica_id="rep_1", outcome="done", started_at_ms=now, settled_at_ms=now,
            input_tokens=7, cached_tokens=0, output_tokens=5, kv_page_ms=2000, price_version_id=each.price_version_id,
        )
        for each in (before, after)
    ]  # fmt: skip
    with unit_of_work(engine) as session:
        record(session, {b"%d-0" % number: each for number, each in enumerate(events)}, RECORDING)
    with engine.connect() as connection:
        charged = dict(connection.exec_driver_sql("SELECT price_version_id, amount_nanos FROM usage_records").all())
    for event, each in zip(events, (before, after), strict=True):
        assert charged[each.price_version_id] == rate(event, each.prices).amount_nanos
