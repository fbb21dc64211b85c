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
        (with_(PLAN, True, "limits", "kv_pages"), "limits.kv_pages"),
        (with_(PLAN, 10**30, "limits", "tokens_per_month"), "limits.tokens_per_month"),
        (with_(PLAN, 10**12, "prices", "input_nanos"), "prices.input_nanos"),
        (without(PLAN, "limits", "adapter_rank"), "limits.adapter_rank"),
        (with_(PLAN, 1, "limits", "gpus"), "limits.gpus"),
        (with_(PLAN, "a\u0000b", "name"), "name"),
        (with_(PLAN, None, "name"), "name"),
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


OVERLAPPING = [{"up_to": up_to, "unit_price_nanos": 5} for up_to in (1_000, 500, None)]
TIERS = {"quantity": "output_tokens", "mode": "graduated", "tiers": OVERLAPPING}
OUTPUT = ("prices", "output_nanos")
VERSION, CREDITS = "admin/plans/{plan}/versions", "admin/tenants/{tenant}/credits"
DISCOUNTS, CALENDAR = "admin/tenants/{tenant}/discounts", "admin/tenants/{tenant}/billing-calendar"
PAST = "2020-01-01T00:00:00Z"
PAST_START = {"effective_from": PAST}
PAID, DISCOUNT = {"kind": "paid", "amount_nanos": 10_000_000}, {"name": "x", "amount_nanos": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "param", "fix"),
    [
        ("POST", VERSION, with_(PLAN, -1, *OUTPUT), "invalid_value", "prices.output_nanos", "at least 0"),
        ("POST", VERSION, with_(PLAN, 0.5, *OUTPUT), "invalid_value", "prices.output_nanos", "a whole number"),
        ("POST", VERSION, with_(PLAN, "free", *OUTPUT), "invalid_value", "prices.output_nanos", "a whole number"),
        (
            "POST", VERSION, with_(PLAN, [TIERS], "prices", "tiers"), "invalid_price_card",
            "prices.tiers[0].tiers[1].up_to", "larger than in the tier before",
        ),
        ("POST", VERSION, PLAN | PAST_START, "invalid_value", "effective_from", "Leave it out"),
        ("POST", CREDITS, PAID | {"amount_nanos": -5}, "invalid_value", "amount_nanos", "at least 1"),
        ("POST", CREDITS, PAID | {"amount_nanos": 0.5}, "invalid_value", "amount_nanos", "a whole number"),
        ("POST", CREDITS, PAID | {"kind": "gold"}, "invalid_value", "kind", "one of paid, promotional"),
        ("POST", CREDITS, PAID | {"expires_at": PAST}, "invalid_value", "expires_at", "use a later instant"),
        ("POST", DISCOUNTS, DISCOUNT | {"currency": "eur"}, "unknown_field", "currency", "Use name"),
        ("POST", DISCOUNTS, DISCOUNT | PAST_START, "invalid_value", "effective_from", "leave it out"),
        ("PUT", CALENDAR, {"zone": "Mars/Olympus"}, "unknown_zone", "zone", "such as Europe/Berlin"),
    ],
)  # fmt: skip
def test_wrong_money_and_times_are_refused_with_code_field_and_fix(shared_api, method, path, body, code, param, fix):
    plan = shared_api.plan()
    tenant = shared_api.tenant(plan["name"])
    body = {name: value for name, value in body.items() if name != "name" or "plans" not in path}
    url = f"/api/v1/{path.format(plan=plan['id'], tenant=tenant.id)}"
    response = shared_api.admin.request(method, url, json=body)
    problem = response.json()
    assert (response.status_code, problem["code"], problem["param"]) == (400, code, param), response.text
    assert param in problem["detail"]
    assert fix in problem["detail"]
    assert len(shared_api.admin.get(f"/api/v1/admin/plans/{plan['id']}/versions").json()["data"]) == 1
    for kept in ("credits", "discounts"):
        assert shared_api.admin.get(f"/api/v1/admin/tenants/{tenant.id}/{kept}").json()["data"] == []


BEYOND = ("0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00")  # in UTC, neither is of a year with four digits
SIMULATION = {"prices": PRICES, "start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}
TAX_RATE = {"country": "DE", "name": "VAT", "rate_ppm": 190_000}
POOL_RATE = {"base_model": "tiny-instruct", "rank_max": 16, "nanos_per_hour": 1}


@pytest.mark.parametrize("instant", BEYOND)
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
def test_an_instant_that_no_period_can_hold_is_refused_at_its_field(shared_api, method, path, body, param, instant):
    plan = shared_api.plan()
    tenant = shared_api.tenant(plan["name"])
    url = f"/api/v1/{path.format(plan=plan['id'], tenant=tenant.id)}"
    response = shared_api.admin.request(method, url, json=body | {param: instant})
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
    ],
)
def test_a_wrong_query_parameter_is_named(shared_api, path, param):
    response = shared_api.admin.get(path)
    assert (response.status_code, response.json()["param"]) == (400, param), response.text


def test_the_source_of_an_outside_price_has_no_control_characters(shared_api):
    price = {"base_model": "a", "provider": "b", "as_of": "2026-11-01", "currency": "usd", "source": "a\u0000b"}
    price |= {"input_nanos_per_mtok": 1, "output_nanos_per_mtok": 1}
    problem = shared_api.admin.post("/api/v1/admin/costs/outside-prices", json=price).json()
    assert (problem["status"], problem["param"]) == (400, "source"), problem
    assert problem["detail"] == "source: leave out control characters."


@pytest.mark.parametrize("reason", ["a\u0000b", "a\nb", " ", "\n"])
def test_a_reason_is_words_without_control_characters(shared_api, reason):
    body = {"reason": reason, "output_tokens": 1}
    problem = shared_api.admin.post("/api/v1/admin/usage/req_1/amend", json=body).json()
    assert (problem["status"], problem["param"]) == (400, "reason")
    assert problem["detail"] == "reason: write some words, and leave out control characters."


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("start=yesterday", "start"),
        ("start=2026-01-01T00:00:00", "start"),
        ("start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "end"),
        ("start=1999-01-01T00:00:00Z", "start"),
        ("end=0001-01-01T00:00:00Z", "end"),
        ("bucket=2h", "bucket"),
        ("group_by=tenant", "group_by"),
    ],
)
def test_a_wrong_usage_query_is_named(shared_api, query, param):
    response = shared_api.tenant().http.get(f"/api/v1/usage?{query}")
    assert (response.status_code, response.json()["param"]) == (400, param), response.text


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
