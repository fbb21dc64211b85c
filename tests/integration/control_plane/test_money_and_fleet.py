"""Usage, quota, invoices, reconciliation and replicas through the API, with data that billing and agents write."""

from datetime import UTC, datetime

from control_plane.dollars import with_dollars
from core import redis_keys
from tests.fixtures.control_plane.api import LIMITS, PRICES
from tests.fixtures.control_plane.registry_rows import beat
from tests.fixtures.control_plane.usage import used


def test_replicas_are_listed_as_their_agents_report_them(api, redis):
    beat(redis, "tiny-instruct", replica_id="rep_a")
    beat(redis, "tiny-instruct", replica_id="rep_b", state="starting", reason="no bucket")
    beat(redis, "tiny-instruct", replica_id="rep_c", state="of_a_newer_agent")
    redis.zadd(redis_keys.REPLICAS, {f"rep_gone_{number}": number for number in range(10_001)})
    listed = api.admin.get("/api/v1/admin/replicas").json()
    assert [(each["id"], each["state"], each["reason"], each["drain_requested"]) for each in listed["data"]] == [
        ("rep_a", "ready", None, False),
        ("rep_b", "starting", "no bucket", False),
        ("rep_c", "of_a_newer_agent", None, False),
    ]


def test_the_quota_shows_gateways_holds_and_counts(api, redis):
    tenant = api.tenant()
    empty = tenant.http.get("/api/v1/quota").json()
    assert empty["limits"] == with_dollars(LIMITS)
    assert {*empty["used"].values(), *empty["held"].values()} == {0, "0"}, "0 dollars are a text"
    seconds, micros = redis.time()
    now_us = seconds * 1_000_000 + micros
    fields = {
        "concurrent": 2, "kv_pages": 70, "requests_tat_us": now_us + 30_000_000, "tokens_tat_us": now_us - 5,
        "month": datetime.now(UTC).strftime("%Y-%m"), "month_used": 1234, "month_held": 56,
    }  # fmt: skip
    redis.hset(redis_keys.tenant_quota(tenant.id), mapping=fields)
    quota = tenant.http.get("/api/v1/quota").json()
    assert quota["held"] == with_dollars(
        {"concurrent_requests": 2, "kv_pages": 70, "tokens": 56, "gpu_seconds": 0, "spend_nanos": 0}
    )
    assert quota["used"]["tokens_per_month"] == 1234
    assert 250 <= quota["used"]["requests_per_minute"] <= 300, "30 s of a minute whose limit is 600"


def test_usage_is_billed_and_reconciled_exactly(api, base, record, redis):
    prices = {name: 10_000 * nanos for name, nanos in PRICES.items()}
    tenant, other = (api.tenant(api.plan(prices=prices)["name"]) for _ in range(2))
    adapter = tenant.adapter("router", base)
    record(used(tenant.id, adapter_id=adapter["id"]), used(tenant.id), used(other.id, output_tokens=1))
    total = tenant.http.get("/api/v1/usage").json()["data"]
    assert {key: sum(row[key] for row in total) for key in ("requests", "input_tokens", "output_tokens")} == {
        "requests": 2,
        "input_tokens": 200,
        "output_tokens": 14,
    }
    assert sum(row["kv_page_seconds"] for row in total) == 19.0
    grouped = tenant.http.get("/api/v1/usage", params={"group_by": "adapter", "bucket": "1d"}).json()["data"]
    assert {(row["adapter_id"], row.get("adapter")) for row in grouped} == {(adapter["id"], "router"), ("", None)}
    judged = tenant.http.get("/api/v1/usage", params={"group_by": "revision", "bucket": "1d"}).json()["data"]
    assert {(row["revision"], row["adapter_id"], row.get("adapter"), row["requests"]) for row in judged} == {
        ("", adapter["id"], "router", 1),
        ("", "", None, 1),
    }
    assert all(row["service"]["outcomes"] == {"done": 1} for row in judged)
    before = api.admin.get("/api/v1/admin/reconciliation").json()
    assert (before["ledger_tokens"], before["invoiced_tokens"]) == (315, 0)
    closed = api.admin.post("/api/v1/admin/billing/close", json={"until": "now"})
    assert closed.status_code == 201
    assert {invoice["tenant_id"] for invoice in closed.json()["invoices"]} == {tenant.id, other.id}
    after = api.admin.get("/api/v1/admin/reconciliation").json()
    assert (after["invoiced_tokens"], after["unbilled_tokens"]) == (315, 0)
    assert api.admin.post("/api/v1/admin/billing/close", json={"until": "now"}).json() == {
        "dry_run": False,
        "invoices": [],
    }

    (mine,) = tenant.http.get("/api/v1/invoices").json()["data"]
    invoice = tenant.http.get(f"/api/v1/invoices/{mine['id']}").json()
    each = 60 * prices["input_nanos"] + 40 * prices["cached_input_nanos"] + 7 * prices["output_nanos"]
    each += 9_500 * prices["kv_page_second_nanos"] // 1000
    assert invoice["amount_nanos"] == 2 * each == sum(line["amount_nanos"] for line in invoice["lines"])
    (theirs,) = other.http.get("/api/v1/invoices").json()["data"]
    foreign = tenant.http.get(f"/api/v1/invoices/{theirs['id']}")
    assert (foreign.status_code, foreign.json()["code"]) == (404, "invoice_not_found")
    everyone = api.admin.get("/api/v1/admin/invoices", params={"limit": 1}).json()
    rest = api.admin.get("/api/v1/admin/invoices", params={"limit": 1, "cursor": everyone["next_cursor"]}).json()
    assert {page["data"][0]["id"] for page in (everyone, rest)} == {mine["id"], theirs["id"]}
    assert rest["next_cursor"] is None


def test_one_tenant_is_closed_after_a_dry_run_that_leaves_nothing_and_none_for_nothing(api, record):
    dear = api.plan(prices={"output_nanos": 10_000_000})["name"]
    one, other, cheap = api.tenant(dear), api.tenant(dear), api.tenant()
    record(*(used(tenant.id) for tenant in (one, other, cheap)))

    def close(**body) -> dict:
        answer = api.admin.post("/api/v1/admin/billing/close", json={"until": "now"} | body)
        return answer.raise_for_status().json()

    dry = close(dry_run=True)
    assert {each["tenant_id"] for each in dry["invoices"]} == {one.id, other.id}, "$0.00 is no invoice"
    assert [(each["id"], each["number"], each["total_cents"]) for each in dry["invoices"]] == [("", "", 7)] * 2
    assert api.admin.get("/api/v1/admin/invoices").json()["data"] == []
    (made,) = close(tenant_id=one.id)["invoices"]
    assert (made["tenant_id"], made["total_cents"], made["number"]) == (one.id, 7, "TNR-000001")
    assert close(tenant_id=one.id, dry_run=True)["invoices"] == []
    assert close(tenant_id=cheap.id)["invoices"] == []
    assert [each["tenant_id"] for each in close()["invoices"]] == [other.id]
    unknown = api.admin.post("/api/v1/admin/billing/close", json={"until": "now", "tenant_id": "tn_none"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "tenant_not_found")
