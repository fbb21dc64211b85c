"""Invalid requests get problem+json that names the field, and never a 5xx."""

import json
import re

import pytest

from core.ids import is_id
from tests.fixtures.control_plane.api import LIMITS, PRICES
from tests.fixtures.uploads.peft_adapters import tiny_base

PLAN = {"name": "starter", "limits": LIMITS, "prices": PRICES}


def without(body: dict, *path: str) -> dict:
    changed = json.loads(json.dumps(body))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return changed


def with_(body: dict, value, *path: str) -> dict:
    changed = json.loads(json.dumps(body))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (with_(PLAN, "60", "limits", "requests_per_minute"), "limits.requests_per_minute"),
        (without(PLAN, "limits", "adapter_rank"), "limits.adapter_rank"),
        (with_(PLAN, 1, "limits", "gpus"), "limits.gpus"),
        (with_(PLAN, "a\u0000b", "name"), "name"),
    ],
)
def test_a_wrong_field_is_named(shared_api, body, param):
    response = shared_api.admin.post("/api/v1/admin/plans", json=body)
    problem = response.json()
    assert (response.status_code, problem["param"]) == (400, param)
    assert response.headers["content-type"] == "application/problem+json"
    assert param in problem["detail"]
    assert is_id(problem["request_id"], "req")
    assert problem["request_id"] == response.headers["x-request-id"]


def test_a_nul_that_no_room_refuses_is_named_before_postgres_fails_to_store_it(shared_api):
    shared_api.register(base := tiny_base()).raise_for_status()
    pool = {"name": "nul", "base_model": base.id}
    shared_api.admin.post("/api/v1/admin/pools", json=pool).raise_for_status()
    response = shared_api.admin.patch("/api/v1/admin/pools/nul", json={"tenants": ["tn_1", "a\u0000b"]})
    assert (response.status_code, response.json()["code"]) == (400, "nul_character")
    assert response.json()["param"] == "tenants[1]"


OVERLAPPING = [{"up_to": up_to, "unit_price_nanos": 5} for up_to in (1_000, 500, None)]
TIERS = {"quantity": "output_tokens", "mode": "graduated", "tiers": OVERLAPPING}
OUTPUT = ("prices", "output_nanos")
VERSION, TENANT = "admin/plans/{plan}/versions", "admin/tenants/{tenant}"
CREDITS, DISCOUNTS, CALENDAR = f"{TENANT}/credits", f"{TENANT}/discounts", f"{TENANT}/billing-calendar"
OVERRIDES, SPENDING, LIMIT = f"{TENANT}/price-overrides", f"{TENANT}/spending", "spend-limits"
PAST, NAIVE = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00"
PAST_START = {"effective_from": PAST}
PAID, DISCOUNT = {"kind": "paid", "amount_nanos": 10_000_000}, {"name": "x", "amount_nanos": 1}
TOP_UP, TOO_MUCH = ("amount_cents", "month_cents_max"), "auto_top_up.amount_cents"
DAY_LIMIT = {"scope": "tenant", "window": "day", "amount_nanos": 1}
POOL_RATE = {"base_model": "tiny-instruct", "rank_max": 16, "nanos_per_hour": 1, "effective_from": PAST}
OUTSIDE = {
    "base_model": "a", "provider": "b", "as_of": "2026-11-01", "currency": "usd", "source": "https://example.com/",
    "input_nanos_per_mtok": 1, "output_nanos_per_mtok": 1,
}  # fmt: skip
WORDS = PRICES | {"included": [{"quantity": "words", "units": 1}]}
INVALID = "invalid_value"
SHOWN = {"admin/billing/close": "admin/invoices"}
"""Where a write's effect is shown, if not at its own path."""
TWICE = PRICES | {"included": [{"quantity": "output_tokens", "units": 1}] * 2}


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "param", "says"),
    [
        ("POST", VERSION, with_(PLAN, -1, *OUTPUT), INVALID, "prices.output_nanos", "at least 0"),
        ("POST", VERSION, with_(PLAN, 0.5, *OUTPUT), INVALID, "prices.output_nanos", "a whole number"),
        ("POST", VERSION, with_(PLAN, "free", *OUTPUT), INVALID, "prices.output_nanos", "a whole number"),
        (
            "POST", VERSION, with_(PLAN, [TIERS], "prices", "tiers"),
            "invalid_price_card", "prices.tiers[0].tiers[1].up_to", "larger than in",
        ),
        ("POST", VERSION, PLAN | PAST_START, INVALID, "effective_from", "Leave it out"),
        ("POST", VERSION, {}, "missing_field", "limits", "give what changes"),
        ("POST", VERSION, {"prices": {"input_nanos": None}}, INVALID, "prices.input_nanos", "not null"),
        ("POST", VERSION, {"limits": {"kv_pages": None}}, INVALID, "limits.kv_pages", "not null"),
        (
            "POST", VERSION, {"prices": {"input_usd_per_million": "0.00005"}},
            "invalid_dollars", "prices.input_usd_per_million", "is not exact",
        ),
        (
            "POST", VERSION, {"prices": {"input_usd_per_million": "2000001"}},
            "invalid_dollars", "prices.input_usd_per_million", "at most",
        ),
        ("POST", CREDITS, PAID | {"amount_nanos": -5}, INVALID, "amount_nanos", "at least 1"),
        ("POST", CREDITS, PAID | {"amount_nanos": 0.5}, INVALID, "amount_nanos", "a whole number"),
        ("POST", CREDITS, PAID | {"kind": "gold"}, INVALID, "kind", "one of paid, promotional"),
        ("POST", CREDITS, PAID | {"expires_at": PAST}, INVALID, "expires_at", "use a later instant"),
        ("POST", CREDITS, PAID | {"models": ["no-such-model"]}, INVALID, "models", "is no base model"),
        ("POST", CREDITS, PAID | {"amount_nanos": 12_345}, INVALID, "amount_nanos", "whole cents"),
        ("POST", CREDITS, PAID | {"effective_from": NAIVE}, INVALID, "effective_from", "timezone"),
        ("POST", CREDITS, PAID | {"reference": "stripe:pi_1"}, INVALID, "reference", "at Stripe"),
        ("POST", DISCOUNTS, DISCOUNT | {"currency": "eur"}, "unknown_field", "currency", "Use name"),
        ("POST", DISCOUNTS, DISCOUNT | PAST_START, INVALID, "effective_from", "leave it out"),
        ("POST", DISCOUNTS, {"name": "x"}, INVALID, "amount_nanos", "give either"),
        ("POST", DISCOUNTS, DISCOUNT | {"percent_hundredths": 1}, INVALID, "amount_nanos", "give either"),
        (
            "POST", DISCOUNTS, {"name": "x", "percent_hundredths": 10_001},
            INVALID, "percent_hundredths", "at most 10000",
        ),
        ("POST", DISCOUNTS, DISCOUNT | {"duration": "periods"}, INVALID, "periods", "duration"),
        ("POST", DISCOUNTS, DISCOUNT | {"periods": 3}, INVALID, "periods", "duration"),
        ("POST", DISCOUNTS, DISCOUNT | {"expires_at": PAST}, INVALID, "expires_at", "later than"),
        ("POST", OVERRIDES, {"prices": PRICES, "expires_at": PAST}, INVALID, "expires_at", "later than"),
        ("POST", OVERRIDES, {"prices": WORDS}, INVALID, "prices.included[0].quantity", "must be one of"),
        ("POST", OVERRIDES, {"prices": TWICE}, "invalid_price_card", "prices.included[1]", "already; remove one"),
        ("PUT", CALENDAR, {"zone": "Mars/Olympus"}, "unknown_zone", "zone", "such as Europe/Berlin"),
        ("PUT", CALENDAR, {"interval": "fortnight"}, INVALID, "interval", "one of month"),
        ("PUT", CALENDAR, {"anchor": "0001-01-01"}, INVALID, "anchor", "2000 to 9000"),
        ("PATCH", TENANT, {"limits_reason": "launch"}, INVALID, "limits", "in the same request"),
        (
            "PATCH", TENANT, {"limits": {"adapters": 9}, "limits_expire_at": PAST},
            INVALID, "limits_expire_at", "later than now",
        ),
        (
            "PATCH", TENANT, {"limits": {"adapters": 9}, "limits_expire_at": NAIVE},
            INVALID, "limits_expire_at", "without an offset",
        ),
        ("PATCH", SPENDING, {"invoice_threshold_nanos": 0}, INVALID, "invoice_threshold_nanos", "at least 1"),
        ("PATCH", SPENDING, {"balance_floors_nanos": [-1]}, INVALID, "balance_floors_nanos[0]", "at least 0"),
        (
            "PATCH", SPENDING, {"auto_top_up": {"amount_cents": 1_000, "floor_nanos": 0, "month_cents_max": 999}},
            INVALID, "auto_top_up", "use at least that",
        ),
        (
            "PATCH", SPENDING, {"auto_top_up": dict.fromkeys(TOP_UP, 10**8) | {"floor_nanos": 0}},
            INVALID, TOO_MUCH, "at most 99999999",
        ),
        ("POST", LIMIT, DAY_LIMIT | {"window": "hour"}, INVALID, "window", "day, month"),
        ("POST", LIMIT, DAY_LIMIT | {"subject_id": "key_1"}, INVALID, "subject_id", "leave it out"),
        ("POST", LIMIT, DAY_LIMIT | {"scope": "key"}, INVALID, "subject_id", "needs the id"),
        ("POST", LIMIT, DAY_LIMIT | {"scope": "key", "subject_id": "key_none"}, INVALID, "subject_id", "has no key"),
        (
            "POST", LIMIT, DAY_LIMIT | {"scope": "adapter", "subject_id": "ad_none"},
            INVALID, "subject_id", "has no adapter",
        ),
        ("POST", "api-keys", {"limits": {"tokens_per_month": 0}}, INVALID, "limits.tokens_per_month", "at least 1"),
        ("POST", "api-keys", {"limits": {"adapters": 3}}, "unknown_field", "limits.adapters", "Use requests"),
        ("POST", "admin/billing/close", {"until": "2026-01-01T00:00:00"}, INVALID, "until", "with an offset"),
        ("POST", "admin/billing/close", {"until": "NOW"}, INVALID, "until", "with an offset"),
        ("POST", "admin/costs/rates", POOL_RATE | {"nanos_per_hour": 1.5}, INVALID, "nanos_per_hour", "a whole number"),
        ("POST", "admin/costs/rates", POOL_RATE | {"effective_from": NAIVE}, INVALID, "effective_from", "timezone"),
        ("POST", "admin/costs/outside-prices", OUTSIDE | {"as_of": "2026-02-30"}, INVALID, "as_of", "date"),
        (
            "POST", "admin/costs/outside-prices", OUTSIDE | {"source": "a\u0000b"},
            INVALID, "source", "leave out control",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_changes_nothing(shared_api, method, path, body, code, param, says):
    plan = shared_api.plan()
    tenant = shared_api.tenant(plan["name"])
    body = {name: value for name, value in body.items() if name != "name" or "plans" not in path}
    http = shared_api.admin if path.startswith("admin/") else tenant.http
    ids = {"plan": plan["id"], "tenant": tenant.id}
    url, shown = (f"/api/v1/{each.format(**ids)}" for each in (path, SHOWN.get(path, path)))
    before = http.get(shown).raise_for_status().json()
    response = http.request(method, url, json=body)
    problem = response.json()
    assert (response.status_code, problem["code"], problem["param"]) == (400, code, param), response.text
    assert param in problem["detail"]
    assert says in problem["detail"]
    assert http.get(shown).json() == before


SIMULATION = {"prices": PRICES, "start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}
TAX_RATE = {"country": "DE", "name": "VAT", "rate_ppm": 190_000}


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", VERSION, {"limits": LIMITS, "prices": PRICES}, "effective_from"),
        ("POST", "admin/plans/{plan}/simulations", SIMULATION, "start"),
        ("POST", "admin/plans/{plan}/simulations", SIMULATION, "end"),
        ("POST", "admin/tenants/{tenant}/price-overrides", {"prices": PRICES}, "effective_from"),
        ("POST", "admin/tenants/{tenant}/price-overrides", {"prices": PRICES}, "expires_at"),
        ("POST", DISCOUNTS, DISCOUNT, "effective_from"),
        ("POST", DISCOUNTS, DISCOUNT, "expires_at"),
        ("POST", CREDITS, PAID | {"reference": "r"}, "effective_from"),
        ("POST", CREDITS, PAID | {"reference": "r"}, "expires_at"),
        ("POST", "admin/billing/close", {}, "until"),
        ("POST", "admin/billing/tax-rates", TAX_RATE, "effective_from"),
        ("POST", "admin/costs/rates", POOL_RATE, "effective_from"),
    ],
)  # fmt: skip
def test_an_instant_that_no_period_can_hold_is_refused_at_its_field(shared_api, method, path, body, param):
    plan = shared_api.plan()
    tenant = shared_api.tenant(plan["name"])
    url = f"/api/v1/{path.format(plan=plan['id'], tenant=tenant.id)}"
    response = shared_api.admin.request(method, url, json=body | {param: "0001-01-01T00:00:00+05:00"})
    problem = response.json()
    assert (response.status_code, problem["code"], problem["param"]) == (400, "instant_out_of_range", param), (
        response.text
    )
    assert "use an instant of the years 2000 to 9000" in problem["detail"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"name": NaN}', "invalid_json"),
        (b'{"name": Infinity}', "invalid_json"),
        (b'{"name": "\xff"}', "invalid_json"),
        (b"[" * 100_000, "invalid_value"),
        (b'{"name": ' + b"[" * 100_000, "invalid_value"),
        (b"[]", "invalid_value"),
        (b"", "invalid_request"),
        (b'"text"', "invalid_value"),
    ],
)
def test_an_unexpected_json_body_is_refused(shared_api, content, code):
    headers = {"content-type": "application/json"}
    response = shared_api.admin.post("/api/v1/admin/plans", content=content, headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, code), response.text


def test_another_content_type_is_refused(shared_api):
    response = shared_api.admin.post("/api/v1/admin/plans", data={"name": "x"})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_refused(shared_api):
    big = b'{"name": "' + b"x" * (1 << 20) + b'"}'
    response = shared_api.admin.post("/api/v1/admin/plans", content=big, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "request_too_large")
    spec = tiny_base()
    response = shared_api.admin.post("/api/v1/admin/base-models", content=b" " * (1 << 20) + b"{}")
    assert response.status_code == 400, "a base model's body may be larger"
    assert shared_api.register(spec).status_code == 201


def test_a_body_without_a_length_is_bounded(shared_api):
    response = shared_api.admin.post("/api/v1/admin/plans", content=(b" " * 65536 for _ in range(1000)))
    assert (response.status_code, response.headers["connection"]) == (413, "close")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/api/v1/admin/tenants?limit=0", "limit"),
        ("/api/v1/admin/tenants?limit=1000000000", "limit"),
        ("/api/v1/admin/tenants?limit=ten", "limit"),
        ("/api/v1/admin/tenants?cursor=forged", "cursor"),
        ("/api/v1/admin/tenants?cursor=YWZ0ZXI6JzsgRFJPUCBUQUJMRQ", "cursor"),
        ("/api/v1/admin/tenants?cursor=%00", "cursor"),
        ("/api/v1/admin/costs?start=0001-01-01T00:00:00Z", "start"),
        ("/api/v1/admin/costs?end=0001-01-01T00:00:00Z", "end"),
        ("/api/v1/admin/tenants?cursor=" + "A" * 5000, "cursor"),
        ("/api/v1/admin/tenants?sort=size", "sort"),
        ("/api/v1/admin/tenants?search=" + "x" * 201, "search"),
        ("/api/v1/admin/tenants?sort=cost&cursor=x", "cursor"),
        ("/api/v1/admin/audit-events?start=2026-02-01T00:00:00Z&end=2026-01-01T00:00:00Z", "end"),
        ("/api/v1/admin/audit-events?actor=a%00b", "actor"),
        ("/api/v1/admin/audit-events?target=" + "x" * 201, "target"),
        ("/api/v1/admin/audit-events?user=x", "user"),
        ("/api/v1/usage?start=yesterday", "start"),
        ("/api/v1/usage?start=2026-01-01T00:00:00", "start"),
        ("/api/v1/usage?start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "end"),
        ("/api/v1/usage?start=1999-01-01T00:00:00Z", "start"),
        ("/api/v1/usage?bucket=2h", "bucket"),
        ("/api/v1/usage?group_by=tenant", "group_by"),
        ("/v1/usage?date=2026-11-31", "date"),
        ("/v1/usage?date=1999-12-31", "date"),
    ],
)
def test_a_wrong_query_parameter_is_named(shared_api, path, param):
    http = shared_api.admin if "/admin/" in path else shared_api.tenant().http
    response = http.get(path)
    assert (response.status_code, response.json()["param"]) == (400, param), response.text


@pytest.mark.parametrize("reason", ["a\u0000b", "a\nb", " ", "\n"])
def test_a_reason_is_words_without_control_characters(shared_api, reason):
    body = {"reason": reason, "output_tokens": 1}
    problem = shared_api.admin.post("/api/v1/admin/usage/req_1/amend", json=body).json()
    assert (problem["status"], problem["param"]) == (400, "reason")
    assert problem["detail"] == "reason: write some words, and leave out control characters."


@pytest.mark.parametrize("path", ["/api/v1/adapters/a%00b", "/api/v1/adapters/%ff", "/api/v1/adapters/..%2f..%2fetc"])
def test_a_strange_path_is_not_found(shared_api, path):
    response = shared_api.tenant().http.get(path)
    assert (response.status_code, response.json()["status"]) == (404, 404)


def test_a_wrong_method_is_405(shared_api):
    response = shared_api.admin.put("/api/v1/admin/plans", json={})
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["x-request-id"]


def test_the_schema_describes_the_api_and_its_authentication(shared_api):
    schema = shared_api.anyone.get("/schema").raise_for_status().json()
    assert schema["info"]["title"] == "Tenora control plane"
    assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    create = schema["paths"]["/api/v1/admin/plans"]["post"]
    assert create["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("NewPlan")
    assert [each["name"] for each in create["parameters"]] == ["Idempotency-Key"]
    assert create["responses"]["400"]["content"]["application/problem+json"]["schema"]["$ref"].endswith("Problem")
    limits = schema["components"]["schemas"]["LimitsBody"]["properties"]
    assert limits["adapters"]["maximum"] == 100_000


def test_every_operation_parameter_and_field_of_the_schema_has_a_description(shared_api):
    schema = shared_api.anyone.get("/schema").json()
    operations = {
        f"{method} {path}": found for path, methods in schema["paths"].items() for method, found in methods.items()
    }
    parameters = {
        f"{name} {each['name']}": each for name, found in operations.items() for each in found.get("parameters", ())
    }
    described = operations | parameters | fields_of(schema)
    assert len(parameters) > 100
    assert [name for name, found in described.items() if not found.get("description")] == []


UNITS = {
    "nanos": "nanodollar|billionths", "nanos_per_hour": "nanodollar", "nanos_per_month": "nanodollar",
    "nanos_per_mtok": "billionths", "usd": "dollar", "cents": "cent", "cents_max": "cent", "ms": "millisecond",
    "ms_p50": "millisecond", "ps": "picosecond", "seconds": "second|page", "bytes": "byte|memory", "ppm": "millionths",
    "hundredths": "hundredth", "tokens": "token|text", "tokens_max": "token", "hours": "hour", "pages": "page",
}  # fmt: skip
"""What the description of a number says, by the end of the number's name."""


def test_every_amount_in_the_schema_names_its_unit(shared_api):
    fields = fields_of(shared_api.anyone.get("/schema").json())
    without, checked = [], 0
    for name, found in fields.items():
        for ending, unit in UNITS.items():
            if name.endswith(f"_{ending}"):
                checked += 1
                if not re.search(unit, found["description"].lower()):
                    without.append(f"{name}: {found['description']}")
    assert checked > 200
    assert without == []


def fields_of(schema: dict) -> dict[str, dict]:
    """Each field of each type of an OpenAPI document, by ``Type.field``."""
    types = schema["components"]["schemas"].items()
    return {f"{name}.{field}": each for name, found in types for field, each in found.get("properties", {}).items()}


def test_the_schema_is_a_page_that_loads_nothing(shared_api):
    page = shared_api.anyone.get("/schema/docs").raise_for_status()
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /api/v1/adapters" in page.text
    assert "in nanodollars per token" in page.text
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
