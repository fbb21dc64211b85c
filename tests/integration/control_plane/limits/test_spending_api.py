"""How a tenant pays, through the API, and what gateways get of it."""

from functools import partial

import msgspec
import pytest

from billing.invoicing.closing import close_tenant
from billing.limits.spending_runner import SpendingRunner
from billing.usage.metering import ActiveTenants
from control_plane.dollars import with_dollars
from control_plane.worker import publish_changed_ceilings
from core import redis_keys
from core.contracts.grants import TenantGrant

DOLLAR = 1_000_000_000


def path_of(tenant) -> str:
    return f"/api/v1/admin/tenants/{tenant.id}"


@pytest.fixture
def published(relay, redis):
    """The tenant as gateways see it."""

    def read(tenant) -> TenantGrant:
        while relay.run_once():
            pass
        return msgspec.json.decode(redis.hget(redis_keys.snapshot("tenants"), tenant.id), type=TenantGrant)

    return read


def test_a_prepaid_tenants_credit_is_published_as_its_ceiling(api, published):
    tenant = api.tenant()
    assert published(tenant).spend_ceiling_nanos is None
    changed = api.admin.patch(f"{path_of(tenant)}/spending", json={"mode": "prepaid"}).raise_for_status().json()
    assert (changed["mode"], changed["headroom_nanos"]) == ("prepaid", 0)
    assert published(tenant).spend_ceiling_nanos == 0
    lot = api.admin.post(f"{path_of(tenant)}/credits", json={"kind": "paid", "amount_nanos": 5 * DOLLAR}).json()
    assert published(tenant).spend_ceiling_nanos == 5 * DOLLAR
    api.admin.post(f"{path_of(tenant)}/credits/{lot['id']}/void").raise_for_status()
    assert published(tenant).spend_ceiling_nanos == 0
    assert api.admin.get(f"{path_of(tenant)}/spending").json()["headroom_nanos"] == 0


def test_the_smaller_of_the_plans_limit_and_the_credit_is_published(api, published):
    plan = api.plan(limits={"spend_nanos_per_month": 2 * DOLLAR})
    tenant = api.tenant(plan["name"])
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": 5 * DOLLAR}).raise_for_status()
    assert published(tenant).spend_ceiling_nanos == 2 * DOLLAR
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": DOLLAR}).raise_for_status()
    assert published(tenant).spend_ceiling_nanos == DOLLAR
    api.admin.patch(f"{path_of(tenant)}/spending", json={"credit_limit_nanos": None}).raise_for_status()
    assert published(tenant).spend_ceiling_nanos == 2 * DOLLAR


def test_what_billing_changes_is_published_by_the_worker(api, engine, published):
    tenant = api.tenant()
    api.admin.patch(f"{path_of(tenant)}/spending", json={"mode": "prepaid"}).raise_for_status()
    with engine.begin() as connection:
        ends = connection.exec_driver_sql("SELECT clock_timestamp() + interval '4 seconds'").scalar_one()
    body = {"kind": "promotional", "amount_nanos": 5 * DOLLAR, "expires_at": ends.isoformat()}
    api.admin.post(f"{path_of(tenant)}/credits", json=body).raise_for_status()
    assert published(tenant).spend_ceiling_nanos == 5 * DOLLAR
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_sleep_until(%s)", (ends,))
    SpendingRunner(engine, ActiveTenants(), invoice_now=partial(close_tenant, engine)).run_once()
    publish_changed_ceilings(engine)
    assert published(tenant).spend_ceiling_nanos == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"invoice_threshold_nanos": 0}, "invoice_threshold_nanos"),
        ({"balance_floors_nanos": [-1]}, "balance_floors_nanos[0]"),
        ({"auto_top_up": {"amount_cents": 1_000, "floor_nanos": 0, "month_cents_max": 999}}, "auto_top_up"),
        (
            {"auto_top_up": {"amount_cents": 100_000_000, "floor_nanos": 0, "month_cents_max": 100_000_000}},
            "auto_top_up.amount_cents",
        ),
    ],
)
def test_impossible_terms_are_refused_with_their_field(shared_api, body, param):
    tenant = shared_api.tenant()
    before = shared_api.admin.get(f"{path_of(tenant)}/spending").json()
    refused = shared_api.admin.patch(f"{path_of(tenant)}/spending", json=body)
    assert (refused.status_code, refused.json()["param"]) == (400, param)
    assert shared_api.admin.get(f"{path_of(tenant)}/spending").json() == before


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
