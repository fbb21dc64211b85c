"""A tenant's usage of a day: the tenant itself, a day in UTC, and what the cache saved."""

from datetime import UTC, datetime, timedelta

from tests.fixtures.control_plane.api import PRICES
from tests.fixtures.control_plane.usage import used

DAY = datetime(2026, 11, 3, tzinfo=UTC)


def test_a_day_is_shown_by_model_and_adapter_with_what_the_cache_saved(api, base, record):
    tenant = api.tenant()
    adapter = tenant.adapter("support-bot", base)
    record(used(tenant.id, DAY, adapter_id=adapter["id"]))
    record(used(tenant.id, DAY + timedelta(hours=23, minutes=59, seconds=59)))
    record(used(tenant.id, DAY + timedelta(days=1)))
    record(used(tenant.id, DAY - timedelta(milliseconds=1)))
    found = tenant.http.get("/v1/usage", params={"team_id": tenant.id, "date": "2026-11-03"}).json()
    assert (found["object"], found["team_id"], found["date"]) == ("usage", tenant.id, "2026-11-03")
    assert [(row["adapter"], row["requests"]) for row in found["data"]] == [(None, 1), ("support-bot", 1)]
    amount = 60 * 100 + 40 * 10 + 7 * 400 + 47
    saved = 40 * (PRICES["input_nanos"] - PRICES["cached_input_nanos"])
    assert found["totals"] == {
        "requests": 2, "input_tokens": 200, "cached_tokens": 80, "output_tokens": 14, "kv_page_ms": 19_000,
        "amount_nanos": 2 * amount, "amount_usd": f"0.{2 * amount:09d}",
        "cached_savings_nanos": 2 * saved, "cached_savings_usd": f"0.{2 * saved:09d}",
    }  # fmt: skip
    assert found["has_more"] is False


def test_without_parameters_it_is_today_and_the_callers_own(api, record):
    tenant = api.tenant()
    record(used(tenant.id, datetime.now(UTC) - timedelta(milliseconds=1)))
    found = tenant.http.get("/v1/usage").json()
    assert (found["team_id"], found["date"]) == (tenant.id, datetime.now(UTC).date().isoformat())
    assert found["totals"]["requests"] == 1 or datetime.now(UTC).hour == 0  # the record may lie before midnight


def test_a_day_without_usage_is_zero(shared_api):
    found = shared_api.tenant().http.get("/v1/usage", params={"date": "2001-01-01"}).json()
    assert (found["data"], found["totals"]["requests"], found["totals"]["amount_usd"]) == ([], 0, "0.000000000")


def test_a_foreign_team_looks_like_none(shared_api):
    ours, theirs = shared_api.tenant(), shared_api.tenant()
    answers = [ours.http.get("/v1/usage", params={"team_id": each}) for each in (theirs.id, "tn_none", "")]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(404, "team_not_found")] * 3
    assert answers[0].json()["detail"] == answers[1].json()["detail"]


def test_a_key_needs_the_scope_and_a_suspended_tenant_may_still_read(shared_api):
    tenant = shared_api.tenant()
    key = tenant.http.post("/api/v1/api-keys", json={"scopes": ["inference"]}).raise_for_status().json()["key"]
    refused = shared_api.client(key).get("/v1/usage")
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    shared_api.admin.patch(f"/api/v1/admin/tenants/{tenant.id}", json={"status": "suspended"}).raise_for_status()
    assert tenant.http.get("/v1/usage").status_code == 200
