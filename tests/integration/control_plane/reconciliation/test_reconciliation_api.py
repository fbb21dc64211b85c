"""Stored reconciliations, and amendments of usage, through the admin API."""

from datetime import timedelta

import pytest

from billing.reconciliation import runs
from core.ids import new_id
from tests.fixtures.control_plane.usage import used
from tests.fixtures.how_to import commands, run, send

LIMITS = runs.RunLimits(settle=timedelta(0), differences_max=100)


@pytest.fixture
def billed(api, record):
    """Bills one request of 100 + 500 tokens, and returns its tenant's id and its own."""
    tenant_id, request_id = api.tenant(api.plan(prices={"output_nanos": 40_000})["name"]).id, new_id("req")
    record(used(tenant_id, request_id=request_id, cached_tokens=0, output_tokens=500, kv_page_ms=0))
    return tenant_id, request_id


def test_reconciliations_are_listed_newest_first_and_read_with_their_differences(api, engine, billed):
    made = [runs.run(engine, LIMITS) for _ in range(3)]
    page = api.admin.get("/api/v1/admin/reconciliation/runs", params={"limit": 2}).json()
    assert [each["id"] for each in page["data"]] == [made[2].id, made[1].id]
    assert [each["mode"] for each in page["data"]] == ["changed", "changed"]
    rest = api.admin.get("/api/v1/admin/reconciliation/runs", params={"cursor": page["next_cursor"]}).json()
    assert ([each["id"] for each in rest["data"]], rest["next_cursor"]) == ([made[0].id], None)
    one = api.admin.get(f"/api/v1/admin/reconciliation/runs/{made[0].id}").json()
    assert (one["mode"], one["differing"]) == ("full", 2)
    unreported = {each["subject"]: each["unexplained"] for each in one["differences"]}
    assert unreported == {"rep_1: output tokens": -500, "rep_1: prompt tokens": -100}
    absent = api.admin.get("/api/v1/admin/reconciliation/runs/rcr_none")
    assert (absent.status_code, absent.json()["code"]) == (404, "reconciliation_not_found")


def test_the_reconciliation_on_demand_keeps_its_fields(api, billed):
    found = api.admin.get("/api/v1/admin/reconciliation").json()
    assert {"engine_tokens", "ledger_tokens", "invoiced_tokens", "unbilled_tokens", "drift_tokens"} <= found.keys()
    assert (found["ledger_tokens"], found["explained_drift_tokens"], found["kv_unmeasured_page_ms"]) == (600, 0, 0)


def test_usage_is_amended_and_voided_with_its_reason_and_an_audit_row(api, billed):
    tenant_id, request_id = billed
    route = f"/api/v1/admin/usage/{request_id}"
    before = api.admin.get(route).json()
    assert (before["output_tokens"], before["amendments"], before["tenant_id"]) == (500, [], tenant_id)
    amended = api.admin.post(f"{route}/amend", json={"output_tokens": 300, "reason": "it looped"})
    assert amended.status_code == 201, amended.text
    assert [each["part"] for each in amended.json()["amendments"]] == ["reversal", "replacement"]
    assert amended.json()["charged_nanos"] < before["charged_nanos"] == amended.json()["recorded_nanos"]
    same = {"idempotency-key": "void-1"}
    first = api.admin.post(f"{route}/void", json={"reason": "test data"}, headers=same)
    again = api.admin.post(f"{route}/void", json={"reason": "test data"}, headers=same)
    assert (first.status_code, again.json()) == (201, first.json())
    assert (first.json()["charged_nanos"], first.json()["voided"]) == (0, True)
    assert api.admin.get(route).json() == first.json()
    events = api.admin.get("/api/v1/admin/reconciliation").json()
    assert (events["ledger_drift_nanos"], events["ledger_tokens"]) == (0, 0)
    refused = api.admin.post(f"{route}/void", json={"reason": "again"})
    assert (refused.status_code, refused.json()["code"]) == (409, "usage_is_voided")


def test_every_command_of_the_how_to_does_what_the_page_says(api, billed, postgres_settings, redis_settings):
    tenant_id, request_id = billed
    values = {
        "TENORA_CONTROL_URL": api.url, "TENORA_ADMIN_KEY": api.admin_secret, "REQUEST": request_id,
        "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn, "TENORA_REDIS_URL": redis_settings.redis_url,
    }  # fmt: skip
    found = [command for command in commands("reconcile.md") if not command.startswith("#")]
    listed, one, now, changed, full, read, amend, void = found
    for command, mode in ((full, "full"), (changed, "changed")):
        done = run(command, values)
        assert (done.returncode, done.stdout.partition(":")[0]) == (0, mode), done.stderr
        assert "in 0 differences\n" in done.stdout
        assert done.stdout.endswith("hours that changed in the last 300 s wait for a later run\n")
    runs_made = send(listed, values).body["data"]
    assert [(each["mode"], each["differing"]) for each in runs_made] == [("changed", 0), ("full", 0)]
    assert send(one, values | {"RUN": runs_made[0]["id"]}).body["differences"] == []
    assert send(now, values).body["ledger_tokens"] == 600
    assert send(read, values).body["tenant_id"] == tenant_id
    assert send(amend, values).body["output_tokens"] == 300
    assert send(void, values).body["charged_nanos"] == 0


def test_an_unknown_request_is_a_404(api):
    for answer in (
        api.admin.get("/api/v1/admin/usage/req_none"),
        api.admin.post("/api/v1/admin/usage/req_none/void", json={"reason": "x"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "usage_not_found")


def test_a_tenants_ledger_shows_its_balances_and_transfers_whose_legs_sum_to_zero(api, record, billed):
    tenant_id, _ = billed
    record(used(tenant_id), used(api.tenant().id))
    root = f"/api/v1/admin/tenants/{tenant_id}/ledger"
    (owed,) = api.admin.get(f"{root}/accounts").json()["data"]
    newest, first = api.admin.get(f"{root}/transfers").json()["data"]
    assert (owed["kind"], newest["kind"], newest["invoice_id"]) == ("usage_unbilled", "usage", None)
    assert newest["id"] > first["id"]
    legs = [{leg["account"]: leg["amount_nanos"] for leg in each["legs"]} for each in (newest, first)]
    assert [sum(each.values()) for each in legs] == [0, 0]
    assert set(legs[0]) == {"usage_unbilled", "revenue", "other_tenants"}
    assert owed["balance_nanos"] == sum(each["usage_unbilled"] for each in legs)
    page = api.admin.get(f"{root}/transfers", params={"limit": 1}).json()
    rest = api.admin.get(f"{root}/transfers", params={"cursor": page["next_cursor"]}).json()
    assert [page["data"], rest["data"]] == [[newest], [first]]
    assert api.admin.get("/api/v1/admin/tenants/tn_none/ledger/accounts").status_code == 404
