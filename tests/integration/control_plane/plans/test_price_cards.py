"""Plans are priced by cards: by model, rank class and tier, at once or from an instant on."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from control_plane.dollars import with_dollars
from control_plane.tenants.scheduled_versions import ScheduledVersions
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import LIMITS, PRICES

STEPS = [{"up_to": 1_000, "unit_price_nanos": 900}, {"up_to": None, "unit_price_nanos": 400}]

TIERS = {"quantity": "output_tokens", "mode": "graduated", "tiers": STEPS}


def add_version(api, plan, prices, **more):
    return api.admin.post(
        f"/api/v1/admin/plans/{plan['id']}/versions", json={"limits": LIMITS, "prices": prices} | more
    )


def test_a_card_is_shown_as_it_was_given_and_gateways_get_its_highest_prices(api, base, grant):
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    entry = PRICES | {"base_model": base.id, "output_nanos": 1_200}
    card = PRICES | {"models": [entry, entry | {"rank_class": 64}], "tiers": [TIERS]}
    answer = add_version(api, plan, card)
    assert answer.status_code == 201, answer.text
    assert answer.json()["prices"] == with_dollars(card)
    assert answer.json()["general_prices"] == [
        {"base_model": base.id, "rank_class": each, "price_of": "base_model",
         "prices": with_dollars(PRICES | {"output_nanos": 1_200})} for each in base.classes if each != 64
    ]  # fmt: skip
    again = add_version(api, plan, answer.json()["prices"])  # an answer can be sent back
    assert again.json()["prices"] == answer.json()["prices"]
    published = grant(tenant)
    assert published.prices.output_nanos == 900
    assert published.prices_of(base.id, 16).output_nanos == 900  # its tiers replace the listed price
    assert published.prices_of(base.id, 64).input_nanos == PRICES["input_nanos"]


@pytest.mark.scenario(12)
@pytest.mark.parametrize(
    ("prices", "code", "param"),
    [
        ({name: 1 for name in PRICES if name != "output_nanos"}, "missing_field", "prices.output_nanos"),
        (PRICES | {"models": [{"base_model": "tiny-instruct", "input_nanos": 1}]}, "missing_field", "prices.models[0]"),
    ],
)
def test_a_card_that_leaves_a_model_without_a_price_is_refused_wherever_a_card_is_given(api, base, prices, code, param):
    """A card's own prices are those of every model without an entry, and none of them has a default."""
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    whole = draft(api, plan).json()
    for answer in (
        api.admin.post("/api/v1/admin/plans", json={"name": "bare", "limits": LIMITS, "prices": prices}),
        draft(api, plan, prices),
        api.admin.put(f"{drafts_of(plan)}/{whole['id']}", json={"limits": LIMITS, "prices": prices}),
        api.admin.post(f"/api/v1/admin/tenants/{tenant.id}/price-overrides", json={"prices": prices}),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, code), answer.text
        assert problem["param"].startswith(param)
        assert problem["param"] in problem["detail"]
    assert [each["version"] for each in api.admin.get("/api/v1/admin/plans").json()["data"]] == [1]
    assert len(api.admin.get(drafts_of(plan)).json()["data"]) == 1


@pytest.mark.scenario(16)
def test_a_batch_factor_comes_back_from_a_draft_a_version_and_an_override_and_reaches_gateways(api, grant):
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    assert grant(tenant).flex_prices is None
    half, quarter = (PRICES | {"batch_factor_permille": factor} for factor in (500, 250))
    made = draft(api, plan, half).raise_for_status().json()
    (listed,) = api.admin.get(drafts_of(plan)).json()["data"]
    assert made["prices"] == listed["prices"] == with_dollars(half)
    published = api.admin.post(f"{drafts_of(plan)}/{made['id']}/publish", json={}).raise_for_status().json()
    assert published["prices"] == with_dollars(half)
    assert grant(tenant).flex_prices.output_nanos == PRICES["output_nanos"] // 2
    of_tenant = f"/api/v1/admin/tenants/{tenant.id}/price-overrides"
    override = api.admin.post(of_tenant, json={"prices": quarter}).raise_for_status().json()
    (shown,) = api.admin.get(of_tenant).json()["data"]
    assert override["prices"] == shown["prices"] == with_dollars(quarter)
    assert grant(tenant).flex_prices.output_nanos == PRICES["output_nanos"] // 4
    api.admin.post(of_tenant, json={"prices": PRICES}).raise_for_status()
    assert grant(tenant).flex_prices is None, "without a factor there is no flex tier"


@pytest.mark.scenario(9)
def test_a_scheduled_version_applies_from_its_instant_without_a_restart(api, engine, grant):
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    scheduled = ScheduledVersions(engine)
    scheduled.run_once()
    begins = datetime.now(UTC) + timedelta(seconds=2)
    add_version(api, plan, PRICES | {"output_nanos": 1}, effective_from=begins.isoformat()).raise_for_status()
    before = grant(tenant)
    assert before.prices.output_nanos == PRICES["output_nanos"]
    assert api.admin.get("/api/v1/admin/plans").json()["data"][0]["version"] == 1

    def published() -> bool:
        scheduled.run_once()
        return grant(tenant).prices.output_nanos == 1

    wait_until(published, what="the scheduled version")
    assert begins <= datetime.now(UTC)
    assert grant(tenant).price_version_id != before.price_version_id


def test_an_admin_sees_what_other_prices_would_cost(api):
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    wanted = {"prices": PRICES, "start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
    answer = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/simulations", json=wanted)
    assert answer.status_code == 200, answer.text
    nothing = {"tenant_id": tenant.id, "amount_nanos": 0, "simulated_nanos": 0, "lines": []}
    assert answer.json()["data"] == [with_dollars(nothing)]
    for change, param in (({"end": wanted["start"]}, "end"), ({"prices": {"input_nanos": 1}}, "prices")):
        refused = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/simulations", json=wanted | change)
        assert refused.status_code == 400
        assert param in refused.text
    assert api.admin.post("/api/v1/admin/plans/pl_none/simulations", json=wanted).status_code == 404


def drafts_of(plan) -> str:
    return f"/api/v1/admin/plans/{plan['id']}/drafts"


def draft(api, plan, prices=PRICES, **more):
    return api.admin.post(drafts_of(plan), json={"limits": LIMITS, "prices": prices} | more)


@pytest.mark.scenario(188)
def test_of_two_admins_drafts_the_second_is_refused_because_its_base_is_outdated(api):
    plan = api.plan()
    first, second = (draft(api, plan, PRICES | {"output_nanos": nanos}).json() for nanos in (1, 2))
    assert (first["base_version"], first["published_version_id"]) == (1, None)
    published = api.admin.post(f"{drafts_of(plan)}/{first['id']}/publish", json={}).raise_for_status().json()
    assert (published["number"], published["prices"]["output_nanos"]) == (2, 1)
    refused = api.admin.post(f"{drafts_of(plan)}/{second['id']}/publish", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "base_version_outdated")
    assert "newest version is 2" in refused.json()["detail"]
    body = {"limits": LIMITS, "prices": PRICES | {"output_nanos": 3}}
    rewritten = api.admin.put(f"{drafts_of(plan)}/{second['id']}", json=body).raise_for_status().json()
    assert rewritten["base_version"] == 2
    again = api.admin.post(f"{drafts_of(plan)}/{second['id']}/publish", json={}).raise_for_status().json()
    assert (again["number"], again["prices"]["output_nanos"]) == (3, 3)


def test_a_published_draft_never_changes_again(api, engine):
    plan = api.plan()
    made = draft(api, plan).json()
    api.admin.post(f"{drafts_of(plan)}/{made['id']}/publish", json={}).raise_for_status()
    body = {"limits": LIMITS, "prices": PRICES}
    for answer in (
        api.admin.put(f"{drafts_of(plan)}/{made['id']}", json=body),
        api.admin.post(f"{drafts_of(plan)}/{made['id']}/publish", json={}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "draft_published")
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match="it is published"):
        connection.execute(sa.text("UPDATE plan_drafts SET prices = '{}'"))
    (listed,) = api.admin.get(drafts_of(plan)).json()["data"]
    assert listed["published_version_id"] is not None


def test_a_draft_changes_no_price_and_can_be_simulated(api):
    plan = api.plan()
    tenant = api.tenant(plan["name"])
    made = draft(api, plan, PRICES | {"base_fee_nanos": 5}).json()
    assert api.admin.get("/api/v1/admin/plans").json()["data"][0]["version"] == 1
    times = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
    found = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/simulations", json={"draft": made["id"]} | times)
    assert [each["tenant_id"] for each in found.raise_for_status().json()["data"]] == [tenant.id]
    for body, param in (
        (times, "draft"),
        ({"draft": made["id"], "prices": PRICES} | times, "draft"),
        ({"draft": made["id"], "start": "2020-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "start"),
    ):
        refused = api.admin.post(f"/api/v1/admin/plans/{plan['id']}/simulations", json=body)
        assert (refused.status_code, refused.json()["param"]) == (400, param)
    elsewhere = api.admin.post(
        f"/api/v1/admin/plans/{api.plan()['id']}/simulations", json={"draft": made["id"]} | times
    )
    assert elsewhere.status_code == 404


@pytest.mark.scenario(188)
def test_a_version_that_names_an_old_base_is_refused(api):
    plan = api.plan()
    add_version(api, plan, PRICES, base_version=1).raise_for_status()
    refused = add_version(api, plan, PRICES, base_version=1)
    assert (refused.status_code, refused.json()["param"]) == (409, "base_version")
