"""How a tenant pays, through the API, and what gateways get of it."""

from functools import partial

import pytest

from billing.invoicing.closing import close_tenant
from billing.limits.spending_runner import SpendingRunner
from billing.usage.metering import ActiveTenants
from control_plane.dollars import with_dollars
from control_plane.worker import publish_changed_ceilings

DOLLAR = 1_000_000_000


def path_of(tenant) -> str:
    return f"/api/v1/admin/tenants/{tenant.id}"


def test_a_prepaid_tenants_credit_is_published_as_its_ceiling(api, grant):
    tenant = api.tenant()
    assert grant(tenant).spend_ceiling_nanos is None
    changed = api.admin.patch(f"{path_of(tenant)}/spending", json={"mode": "prepaid"}).raise_for_status().json()
    assert (changed["mode"], changed["headroom_nanos"]) == ("prepaid", 0)
    assert grant(tenant).spend_ceiling_nanos == 0
    lot = api.admin.post(f"{path_of(tenant)}/credits", json={"kind": "paid", "amount_nanos": 5 * DOLLAR}).json()
    assert grant(tenant).spend_ceiling_nanos == 5 * DOLLAR
    api.admin.post(f"{path_of(tenant)}/credits/{lot['id']}/void").raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == 0
    assert api.admin.get(f"{path_of(tenant)}/spending").json()["headroom_nanos"] == 0


def test_the_smaller_of_the_plans_limit_and_the_credit_is_published(api, grant):
    plan = api.plan(limits={"spend_nanos_per_month": 2 * DOLLAR})
    tenant = api.tenant(plan["name"])
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": 5 * DOLLAR}).raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == 2 * DOLLAR
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": DOLLAR}).raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == DOLLAR
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": None}).raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == 2 * DOLLAR


def test_what_billing_changes_is_published_by_the_worker(api, engine, grant):
    tenant = api.tenant()
    api.admin.patch(f"{path_of(tenant)}/spending", json={"mode": "prepaid"}).raise_for_status()
    with engine.begin() as connection:
        ends = connection.exec_driver_sql("SELECT clock_timestamp() + interval '4 seconds'").scalar_one()
    body = {"kind": "promotional", "amount_nanos": 5 * DOLLAR, "expires_at": ends.isoformat()}
    api.admin.post(f"{path_of(tenant)}/credits", json=body).raise_for_status()
    assert grant(tenant).spend_ceiling_nanos == 5 * DOLLAR
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_sleep_until(%s)", (ends,))
    SpendingRunner(engine, ActiveTenants(), invoice_now=partial(close_tenant, engine)).run_once()
    publish_changed_ceilings(engine)
    assert grant(tenant).spend_ceiling_nanos == 0


@pytest.mark.scenario(86)
def test_auto_top_up_is_off_until_it_is_asked_for_and_credit_does_not_turn_it_on(shared_api):
    tenant = shared_api.tenant()
    spending = f"{path_of(tenant)}/spending"
    assert shared_api.admin.get(spending).json()["auto_top_up"] is None
    wanted = {"amount_cents": 2_500, "floor_nanos": 5 * DOLLAR, "month_cents_max": 10_000}
    assert shared_api.admin.patch(spending, json={"auto_top_up": wanted}).json()["auto_top_up"] == with_dollars(wanted)
    assert shared_api.admin.patch(spending, json={"auto_top_up": None}).json()["auto_top_up"] is None
    shared_api.admin.post(f"{path_of(tenant)}/credits", json={"kind": "paid", "amount_nanos": 5 * DOLLAR})
    assert shared_api.admin.get(spending).json()["auto_top_up"] is None
