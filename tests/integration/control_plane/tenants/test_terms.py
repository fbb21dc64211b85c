"""An admin changes a tenant's terms; gateways and billing follow, and wrong bodies are refused by field."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from billing.invoicing.schedule import PeriodSchedule
from control_plane import database_roles
from control_plane.tenants.scheduled_versions import LOOK_EVERY_S, ScheduledVersions
from core import db, redis_keys
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import LIMITS, PRICES
from tests.fixtures.least_privilege import as_role

DOLLAR = 1_000_000_000


def url(tenant, what: str) -> str:
    return f"/api/v1/admin/tenants/{tenant.id}/{what}"


def assigned(engine, tenant) -> list[tuple[str, datetime]]:
    """The plans of a tenant in the order in which they hold, of equal instants the last one."""
    with engine.connect() as connection:
        rows = connection.execute(
            sa.text(
                "SELECT plan_id, effective_from FROM plan_assignments WHERE tenant_id = :t"
                " ORDER BY effective_from, created_at"
            ),
            {"t": tenant.id},
        ).all()
    return list({begins: (plan, begins) for plan, begins in rows}.values())


@pytest.mark.scenario(52)
def test_a_change_at_the_end_of_the_period_waits_and_can_be_cancelled(api, engine):
    small, large = api.plan(), api.plan()
    tenant = api.tenant(small["name"])
    body = {"plan": large["name"], "begins": "period_end"}
    changed = api.admin.put(url(tenant, "plan"), json=body).raise_for_status().json()
    assert changed["plan_id"] == small["id"]
    assert changed["later"]["plan_id"] == large["id"]
    boundary = datetime.fromisoformat(changed["later"]["effective_from"])
    assert (boundary.day, boundary.hour, boundary.minute) == (1, 0, 0)
    assert [plan for plan, _ in assigned(engine, tenant)] == [small["id"], large["id"]]
    cancelled = api.admin.delete(url(tenant, "plan/later")).raise_for_status().json()
    assert cancelled == {"plan": small["name"], "plan_id": small["id"], "later": None}
    assert [plan for plan, _ in assigned(engine, tenant)] == [small["id"], small["id"]]
    again = api.admin.delete(url(tenant, "plan/later"))
    assert (again.status_code, again.json()["code"]) == (404, "plan_change_not_found")
    assert api.admin.put(url(tenant, "plan"), json=body).json()["later"]["plan_id"] == large["id"]


def test_a_change_now_replaces_one_that_was_to_come(api, engine):
    small, large, other = api.plan(), api.plan(), api.plan()
    tenant = api.tenant(small["name"])
    api.admin.put(url(tenant, "plan"), json={"plan": large["name"], "begins": "period_end"}).raise_for_status()
    now = api.admin.put(url(tenant, "plan"), json={"plan": other["name"]}).raise_for_status().json()
    assert (now["plan_id"], now["later"]) == (other["id"], None)
    assert [plan for plan, _ in assigned(engine, tenant)] == [small["id"], other["id"], other["id"]]


@pytest.mark.scenario(56)
def test_a_change_after_the_clock_was_set_back_is_ordered_after_the_last_one(api, engine):
    small, large = api.plan(), api.plan()
    tenant = api.tenant(small["name"])
    ahead = datetime.now(UTC) + timedelta(seconds=2)
    with engine.begin() as connection:  # as a change that was made by a clock that ran two seconds ahead
        connection.execute(
            sa.text("INSERT INTO plan_assignments VALUES (:t, :at, :p, :at)"),
            {"t": tenant.id, "at": ahead, "p": large["id"]},
        )
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"plan": small["name"]}).raise_for_status()
    (_, _), (second, _), (third, begins) = assigned(engine, tenant)
    assert (second, third) == (large["id"], small["id"])
    assert begins > ahead


def test_gateways_get_the_plans_limit_again_when_its_override_expires(api, engine, grant):
    tenant, scheduled = api.tenant(), ScheduledVersions(engine)
    limits = {"limits": {"adapters": 9, "kv_pages": 64}, "limits_expire_at": "2100-01-01T00:00:00Z"}
    api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json=limits).raise_for_status()
    scheduled.run_once()
    assert (grant(tenant).limits.adapters, grant(tenant).limits.kv_pages) == (9, 64)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE tenants SET limit_override_terms = jsonb_set(limit_override_terms, '{adapters,expires_at}',"
                " to_jsonb(clock_timestamp())) WHERE id = :t"
            ),
            {"t": tenant.id},
        )
    scheduled.run_once()
    assert (grant(tenant).limits.adapters, grant(tenant).limits.kv_pages) == (LIMITS["adapters"], 64)
    assert api.admin.get(f"/api/v1/admin/tenants/{tenant.id}").json()["limit_overrides"] == {"kv_pages": 64}


def test_gateways_get_a_plan_that_is_committed_after_its_instant(api, engine, relay, redis, grant):
    small, large = api.plan(), api.plan(prices={"output_nanos": 7})
    tenant = api.tenant(small["name"])
    scheduled = ScheduledVersions(engine)
    scheduled.run_once()
    with engine.begin() as late:
        begins = late.execute(
            sa.text(
                "INSERT INTO plan_assignments VALUES (:t, clock_timestamp() + interval '50 ms', :p, clock_timestamp())"
                " RETURNING effective_from"
            ),
            {"t": tenant.id, "p": large["id"]},
        ).scalar_one()
        wait_until(lambda: datetime.now(UTC) > begins, what="the instant")
        scheduled.run_once()
        assert grant(tenant).prices.output_nanos != 7
    scheduled.run_once()
    assert grant(tenant).prices.output_nanos == 7
    version = redis.hget(redis_keys.snapshot("tenants"), tenant.id)
    scheduled.run_once()
    assert not relay.run_once(), "what was published is not published again"
    assert redis.hget(redis_keys.snapshot("tenants"), tenant.id) == version


def test_gateways_count_spending_by_the_days_of_a_new_calendar_when_it_begins(api, engine, postgres_settings, grant):
    tenant = api.tenant()
    daily = {"scope": "tenant", "window": "day", "amount_nanos": DOLLAR}
    tenant.http.post("/api/v1/spend-limits", json=daily).raise_for_status()
    assert grant(tenant).zone == "UTC"
    worker = db.connect(as_role(postgres_settings, database_roles.WORKER))
    scheduled = ScheduledVersions(worker)
    assert scheduled.run_once() == LOOK_EVERY_S, "nothing begins"
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO tenant_calendars VALUES"
                " (:t, clock_timestamp() + interval '0.5 s', clock_timestamp(), 'month', 'Asia/Tokyo', NULL)"
            ),
            {"t": tenant.id},
        )

    assert scheduled.run_once() < 1, "the seconds until it begins"

    def published() -> bool:
        scheduled.run_once()
        return grant(tenant).zone == "Asia/Tokyo"

    wait_until(published, what="the later calendar")
    worker.dispose()


@pytest.mark.scenario(48)
def test_a_calendar_holds_from_the_next_period(api):
    tenant = api.tenant()
    body = {"interval": "quarter", "zone": "Asia/Tokyo", "anchor": "2026-01-31"}
    changed = api.admin.put(url(tenant, "billing-calendar"), json=body).raise_for_status().json()
    assert changed["current"] == {"interval": "month", "zone": "UTC", "anchor": None, "effective_from": None}
    assert changed["later"] == body | {"effective_from": changed["period_end"]}
    monthly = {"interval": "month", "zone": "UTC", "anchor": None}
    back = api.admin.put(url(tenant, "billing-calendar"), json=monthly).raise_for_status().json()
    assert back["later"] == monthly | {"effective_from": changed["period_end"]}
    assert api.admin.get(url(tenant, "billing-calendar")).json() == back


def test_discounts_are_granted_listed_and_ended(api):
    tenant = api.tenant()
    first = {"name": "Partner", "percent_hundredths": 1_000}
    second = {"name": "Welcome", "amount_nanos": 15 * DOLLAR, "duration": "once", "expires_at": "2099-01-01T00:00:00Z"}
    made = [api.admin.post(url(tenant, "discounts"), json=body).raise_for_status().json() for body in (first, second)]
    assert api.admin.get(url(tenant, "discounts")).json()["data"] == made
    ended = api.admin.post(url(tenant, f"discounts/{made[0]['id']}/end")).raise_for_status().json()
    assert ended["ended_at"] is not None
    again = api.admin.post(url(tenant, f"discounts/{made[0]['id']}/end"))
    assert (again.status_code, again.json()["code"]) == (409, "discount_ended")
    assert api.admin.post(url(tenant, "discounts/dis_none/end")).status_code == 404
    assert api.admin.post(url(api.tenant(), f"discounts/{made[1]['id']}/end")).status_code == 404


def test_prices_of_a_tenants_own_reach_gateways_and_end(api, engine, grant):
    plan = api.plan()
    tenant, neighbor = api.tenant(plan["name"]), api.tenant(plan["name"])
    scheduled = ScheduledVersions(engine)
    scheduled.run_once()
    expires_at = datetime.now(UTC) + timedelta(seconds=2)
    body = {"prices": PRICES | {"output_nanos": 1}, "expires_at": expires_at.isoformat()}
    made = api.admin.post(url(tenant, "price-overrides"), json=body).raise_for_status().json()
    assert grant(tenant).prices.output_nanos == 1
    assert grant(tenant).price_version_id == made["price_version_id"]
    assert grant(neighbor).prices.output_nanos == PRICES["output_nanos"]

    def expired() -> bool:
        scheduled.run_once()
        return grant(tenant).prices.output_nanos == PRICES["output_nanos"]

    wait_until(expired, what="the expiry")
    assert datetime.now(UTC) >= expires_at
    lasting = {"prices": PRICES | {"output_nanos": 2}}
    api.admin.post(url(tenant, "price-overrides"), json=lasting).raise_for_status()
    api.admin.delete(url(tenant, "price-overrides")).raise_for_status()
    assert grant(tenant).prices.output_nanos == PRICES["output_nanos"]
    assert len(api.admin.get(url(tenant, "price-overrides")).json()["data"]) == 3
    assert api.admin.delete(url(tenant, "price-overrides")).status_code == 404


@pytest.mark.scenario(57)
def test_a_closed_tenant_is_refused_and_gets_its_final_invoice_without_grace(api, engine, grant):
    plan = api.plan(prices={"base_fee_nanos": 86_400 * 3 * DOLLAR})
    tenant = api.tenant(plan["name"])
    joined = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) > joined + timedelta(seconds=1), what="a whole second, for which a fee is due")
    ended = api.admin.post(url(tenant, "close")).raise_for_status().json()
    assert grant(tenant).status == "suspended"
    assert api.admin.get(f"/api/v1/admin/tenants/{tenant.id}").json()["status"] == "closed"
    PeriodSchedule(engine, grace=timedelta(days=1)).run_once()
    (invoice,) = api.admin.get("/api/v1/admin/invoices").json()["data"]
    assert datetime.fromisoformat(invoice["period_end"]) == datetime.fromisoformat(ended["ended_at"])
    lived = datetime.fromisoformat(invoice["period_end"]) - datetime.fromisoformat(invoice["period_start"])
    assert 0 < invoice["amount_nanos"] <= (lived.total_seconds() + 1) * DOLLAR // 10, "a tenth of a dollar a second"
    PeriodSchedule(engine, grace=timedelta(days=1)).run_once()
    assert len(api.admin.get("/api/v1/admin/invoices").json()["data"]) == 1
    assert api.admin.post(url(tenant, "close")).raise_for_status().status_code == 201
    for method, path, body in (
        ("PATCH", "", {"status": "active"}),
        ("PUT", "/plan", {"plan": plan["name"]}),
        ("PUT", "/billing-calendar", {}),
        ("POST", "/discounts", {"name": "x", "amount_nanos": 1}),
    ):
        refused = api.admin.request(method, f"/api/v1/admin/tenants/{tenant.id}{path}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "tenant_closed"), path
