"""Usage and costs in OpenAI's shapes, read with OpenAI's own SDK, and held against the ledger."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa
from openai import OpenAI

from billing import settings as billing_settings
from billing.usage import buckets
from core.contracts.usage import UsageEvent
from tests.fixtures.control_plane.api import PRICES
from tests.fixtures.control_plane.usage import used

DAY = datetime(2026, 11, 3, tzinfo=UTC)
USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
START, END = int(DAY.timestamp()), int((DAY + timedelta(days=3)).timestamp())


def small(tenant_id: str, at: datetime, **changes) -> UsageEvent:
    return used(tenant_id, at, **({"base_model": "small"} | changes))


@pytest.fixture
def tenant(api, record):
    """Three days: 2 requests of adapters, 3 of the base model, one of which is of another model and key."""
    made = api.tenant()
    record(
        small(made.id, DAY + timedelta(minutes=30), adapter_id="ad_a"),
        small(made.id, DAY + timedelta(minutes=30, seconds=20)),
        small(made.id, DAY + timedelta(hours=5), adapter_id="ad_b", key_id="key_2"),
        small(made.id, DAY + timedelta(days=2), base_model="large", key_id="key_2"),
        small(made.id, DAY + timedelta(days=2, hours=23, minutes=59)),
    )
    return made


def client(api, tenant) -> OpenAI:
    return OpenAI(api_key="unused", admin_api_key=tenant.key, base_url=f"{api.url}/v1", max_retries=0)


def exact(response) -> dict:
    response.raise_for_status()
    return json.loads(response.text, parse_float=Decimal)


def pages(http, path: str, **parameters) -> list[dict]:
    found, page = [], None
    while True:
        found.append(exact(http.get(path, params=parameters | ({"page": page} if page else {}))))
        page = found[-1]["next_page"]
        assert found[-1]["has_more"] is (page is not None)
        if page is None:
            return found


def test_openais_own_sdk_reads_usage_by_several_groups(api, tenant):
    page = client(api, tenant).admin.organization.usage.completions(
        start_time=START, end_time=END, group_by=["model", "project_id", "api_key_id"], bucket_width="1d"
    )
    assert [(bucket.start_time, len(bucket.results)) for bucket in page.data] == [
        (START, 3),
        (START + 86_400, 0),
        (START + 2 * 86_400, 2),
    ]
    first = page.data[0].results
    assert [(each.model, each.project_id, each.api_key_id) for each in first] == [
        ("small", "", "key_1"),
        ("small", "ad_a", "key_1"),
        ("small", "ad_b", "key_2"),
    ]
    assert (first[0].input_tokens, first[0].input_cached_tokens, first[0].output_tokens) == (100, 40, 7)
    assert (first[0].num_model_requests, first[0].input_uncached_tokens, first[0].batch) == (1, 60, None)
    # 40 cached tokens at 10 instead of 100 nanodollars
    assert first[0].cached_savings_nanos == 40 * 90
    assert (page.has_more, page.next_page) == (False, None)


def test_usage_by_service_tier_has_flex_requests_apart_at_their_price(api, record):
    """OpenAI groups costs by no service tier; a sum of them has both."""
    half = PRICES | {"batch_factor_permille": 500}
    tenant = api.tenant(api.plan(prices=half)["name"])
    record(*(small(tenant.id, DAY, service_tier=tier) for tier in ("default", "flex", "flex")))
    page = client(api, tenant).admin.organization.usage.completions(
        start_time=START, end_time=END, group_by=["service_tier"], bucket_width="1d"
    )
    flex, default = sorted(page.data[0].results, key=lambda each: each.service_tier, reverse=True)
    assert [(each.service_tier, each.num_model_requests, each.output_tokens) for each in (flex, default)] == [
        ("flex", 2, 14),
        ("default", 1, 7),
    ]
    assert default.amount_nanos == 60 * 100 + 40 * 10 + 7 * 400 + 47
    assert flex.amount_nanos == 2 * (60 * 50 + 40 * 5 + 7 * 200 + 19), "5 nanodollars a page-second are cut to 2"
    times = {"start_time": START, "end_time": END}
    whole = exact(tenant.http.get(USAGE, params=times))["data"][0]["results"]
    assert [(each["service_tier"], each["num_model_requests"]) for each in whole] == [(None, 3)]
    costs = exact(tenant.http.get(COSTS, params=times))["data"][0]["results"]
    assert [each["amount_nanos"] for each in costs] == [default.amount_nanos + flex.amount_nanos]
    shown = tenant.http.get(USAGE, params=times | {"group_by": "service_tier", "format": "csv"})
    rows = list(csv.DictReader(io.StringIO(shown.text, newline="")))
    assert {row["service_tier"]: int(row["num_model_requests"]) for row in rows} == {"default": 1, "flex": 2}


def test_openais_own_sdk_reads_costs_and_their_line_items(api, tenant):
    page = client(api, tenant).admin.organization.usage.costs(start_time=START, end_time=END, group_by=["line_item"])
    found = {each.line_item: each for each in page.data[2].results}
    assert set(found) == {
        f"{model}, {kind}"
        for model in ("large", "small")
        for kind in ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "kv_page_seconds")
    }
    assert (found["large, output_tokens"].quantity, found["large, output_tokens"].quantity_unit) == (7, "tokens")
    assert (found["large, kv_page_seconds"].quantity, found["large, kv_page_seconds"].amount.value) == (9.5, 47e-9)
    assert found["large, output_tokens"].amount.currency == "usd"


def test_amounts_are_exact_numbers_and_sum_to_the_ledger(api, tenant, engine):
    found = exact(tenant.http.get(COSTS, params={"start_time": START, "end_time": END}))
    results = [result for bucket in found["data"] for result in bucket["results"]]
    for result in results:
        assert result["amount"]["value"] == Decimal(result["amount_nanos"]).scaleb(-9)
        assert Decimal(result["amount"]["value_exact"]) == result["amount"]["value"]
    with engine.connect() as connection:
        recorded = connection.execute(
            sa.text("SELECT sum(amount_nanos) FROM usage_records WHERE tenant_id = :t"), {"t": tenant.id}
        ).scalar_one()
    assert sum(result["amount_nanos"] for result in results) == recorded == 5 * (60 * 100 + 40 * 10 + 7 * 400 + 47)


def test_a_bucket_of_very_many_groups_goes_on_on_the_next_page(tenant, monkeypatch):
    parameters = {"start_time": START, "end_time": END, "group_by": ["project_id", "api_key_id"]}
    (whole,) = pages(tenant.http, USAGE, **parameters)
    monkeypatch.setattr(buckets, "USAGE_ROWS_MAX", 2)
    parts = pages(tenant.http, USAGE, **parameters)
    assert len(parts) >= 3
    rows = [(bucket["start_time"], result) for page in parts for bucket in page["data"] for result in bucket["results"]]
    assert rows == [(bucket["start_time"], result) for bucket in whole["data"] for result in bucket["results"]]
    assert {bucket["start_time"] for page in parts for bucket in page["data"]} == {
        bucket["start_time"] for bucket in whole["data"]
    }


def test_minutes_of_many_records_come_on_more_pages(tenant, monkeypatch):
    parameters = {"start_time": START, "end_time": END, "bucket_width": "1m", "limit": 1440}
    before = [bucket for page in pages(tenant.http, USAGE, **parameters) for bucket in page["data"]]
    monkeypatch.setattr(buckets, "USAGE_RECORDS_MAX", 1)
    parts = pages(tenant.http, USAGE, **parameters)
    assert len(parts) > 3
    assert [bucket for page in parts for bucket in page["data"]] == before
    assert billing_settings.USAGE_RECORDS_MAX > 1


def test_filters_name_models_adapters_keys_and_line_items(tenant):
    def requests(**filters) -> int:
        found = exact(tenant.http.get(USAGE, params={"start_time": START, "end_time": END} | filters))
        return sum(result["num_model_requests"] for bucket in found["data"] for result in bucket["results"])

    assert requests() == 5
    assert requests(models=["large"]) == 1
    assert requests(project_ids=["ad_a", "ad_b"]) == 2
    assert requests(project_ids="") == 3
    assert requests(api_key_ids="key_2", models="small") == 1
    assert requests(models="none") == 0
    chosen = {"start_time": START, "end_time": END, "group_by": "line_item", "line_items": "large, output_tokens"}
    found = exact(tenant.http.get(COSTS, params=chosen))
    assert [result["line_item"] for bucket in found["data"] for result in bucket["results"]] == ["large, output_tokens"]


def test_csv_holds_the_same_figures(tenant):
    parameters = {"start_time": START, "end_time": END, "group_by": ["model", "project_id"]}
    by_format = tenant.http.get(USAGE, params=parameters | {"format": "csv"})
    by_accept = tenant.http.get(USAGE, params=parameters, headers={"accept": "text/csv"})
    assert by_format.text == by_accept.text
    assert by_format.headers["content-type"] == "text/csv; charset=utf-8"
    assert by_format.headers["vary"] == "Accept"
    header, *rows = (line.split(",") for line in by_format.text.splitlines())
    assert header[:4] == ["start_time", "end_time", "model", "project_id"]
    assert rows[0][:4] == ["2026-11-03T00:00:00Z", "2026-11-04T00:00:00Z", "small", ""]
    assert sum(int(row[header.index("num_model_requests")]) for row in rows) == 5
    assert {row[header.index("amount_usd")] for row in rows} == {"0.000009247"}
    costs = tenant.http.get(COSTS, params={"start_time": START, "end_time": END, "format": "csv"})
    assert sum(Decimal(line.split(",")[-1]) for line in costs.text.splitlines()[1:]) == Decimal("0.000046235")


def test_one_tenant_never_sees_anothers_usage(api, tenant):
    other = api.tenant()
    found = exact(other.http.get(USAGE, params={"start_time": START, "end_time": END, "api_key_ids": "key_1"}))
    assert [bucket["results"] for bucket in found["data"]] == [[], [], []]
    page = exact(tenant.http.get(USAGE, params={"start_time": START, "end_time": END, "limit": 1}))["next_page"]
    refused = other.http.get(USAGE, params={"start_time": START, "end_time": END, "limit": 1, "page": page})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    ("path", "parameters", "param", "words"),
    [
        (USAGE, {}, "start_time", "start_time"),
        (USAGE, {"start_time": "yesterday"}, "start_time", "start_time"),
        (USAGE, {"start_time": START * 1000}, "start_time", "not milliseconds"),
        (USAGE, {"start_time": START, "end_time": START}, "end_time", "later than start_time"),
        (USAGE, {"start_time": int(datetime(2200, 1, 1, tzinfo=UTC).timestamp())}, "start_time", "future"),
        (USAGE, {"start_time": START, "bucket_width": "1w"}, "bucket_width", "1m, 1h, 1d"),
        (USAGE, {"start_time": START, "group_by": "user_id"}, "group_by", "model, project_id, api_key_id"),
        (COSTS, {"start_time": START, "group_by": "model"}, "group_by", "line_item, project_id, api_key_id"),
        (USAGE, {"start_time": START, "limit": 32}, "limit", "1 to 31"),
        (USAGE, {"start_time": START, "bucket_width": "1m", "limit": 1441}, "limit", "1 to 1440"),
        (USAGE, {"start_time": START, "page": "!"}, "page", "next_page"),
        (USAGE, {"start_time": START, "users": "x"}, "users", "unknown query parameter"),
        (USAGE, {"start_time": [START, START]}, "start_time", "more than once"),
        (USAGE, {"start_time": START, "models": ["m"] * 101}, "models", "models"),
        (USAGE, {"start_time": START - 10**8, "format": "csv"}, "start_time", "at most 92 days"),
        (COSTS, {"start_time": START, "line_items": "a, b"}, "line_items", "group_by=line_item"),
        (COSTS, {"start_time": START, "group_by": "line_item", "line_items": "a"}, "line_items", "MODEL, KIND"),
    ],
)
def test_bad_input_is_a_400_that_names_the_parameter_and_the_fix(shared_api, path, parameters, param, words):
    tenant = shared_api.tenant()
    refused = tenant.http.get(path, params=parameters)
    assert refused.status_code == 400, refused.text
    assert refused.json()["param"] == param, refused.text
    assert words in refused.json()["detail"]


def test_a_cursor_of_other_parameters_is_refused(tenant):
    parameters = {"start_time": START, "end_time": END, "limit": 1}
    page = exact(tenant.http.get(USAGE, params=parameters))["next_page"]
    assert tenant.http.get(USAGE, params=parameters | {"page": page, "limit": 2}).status_code == 200
    for changed in ({"group_by": "model"}, {"end_time": END + 1}, {"bucket_width": "1h"}, {"models": "small"}):
        refused = tenant.http.get(USAGE, params=parameters | {"page": page} | changed)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_cursor"), changed
    assert tenant.http.get(COSTS, params=parameters | {"page": page}).json()["code"] == "invalid_cursor"
