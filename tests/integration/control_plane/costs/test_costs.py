"""Unit economics through the admin API: dated tables in, the report and the FOCUS file out."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest

from billing.costs.hours import allocate_due
from billing.costs.settings import CostSettings
from billing.costs.window_reader import store
from billing.tax import profiles
from billing.tax.parties import Seller
from core import clock
from core.contracts.costs import CostWindow
from core.db import unit_of_work
from core.ids import first_id_of_ms
from tests.fixtures.control_plane.usage import used

HOUR = (datetime.now(UTC) - timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
BASE = "tiny-instruct"
RATE = {
    "base_model": BASE, "rank_max": 16, "effective_from": HOUR.isoformat(), "nanos_per_hour": 3_600_000_000,
    "slot_nanos_per_hour": 0, "pool": "",
}  # fmt: skip
PRICE = {
    "base_model": BASE, "provider": "elsewhere", "as_of": HOUR.date().isoformat(), "currency": "usd",
    "input_nanos_per_mtok": 900_000_000, "output_nanos_per_mtok": 900_000_000, "source": "https://example.com/prices",
}  # fmt: skip
PERIOD = {"start": HOUR.isoformat(), "end": (HOUR + timedelta(hours=1)).isoformat()}


def add(api, table: str, body: dict):
    return api.admin.post(f"/api/v1/admin/costs/{table}", json=body)


def ran(engine, **changes) -> None:
    """Store that a replica was there for the first minute of the hour."""
    start_ms = clock.to_ms(HOUR)
    window = CostWindow(
        replica_id="rep_1", boot_id="boot_1", sequence=0, base_model=BASE, rank_max=16, engine="vllm 0.32.0",
        device="cpu", state="ready", start_ms=start_ms, end_ms=start_ms + 60_000, final=True, **changes,
    )  # fmt: skip
    with unit_of_work(engine) as session:
        store(session, [window])


@pytest.fixture
def idle_minute(api, engine):
    """One replica that was idle for a minute of the hour."""
    add(api, "rates", RATE).raise_for_status()
    ran(engine)
    assert allocate_due(engine, CostSettings()).hours == 1


def test_rates_and_outside_prices_are_added_once_and_listed(api):
    for table, body in (("rates", RATE), ("outside-prices", PRICE)):
        made = add(api, table, body)
        assert made.status_code == 201, made.text
        listed = api.admin.get(f"/api/v1/admin/costs/{table}").json()["data"]
        assert len(listed) == 1
        assert {name: listed[0][name] for name in body if name != "effective_from"} == {
            name: value for name, value in body.items() if name != "effective_from"
        }
        again = add(api, table, body)
        assert (again.status_code, again.json()["code"]) == (
            409,
            "rate_exists" if table == "rates" else "outside_price_exists",
        )


@pytest.fixture
def chat(api, base) -> str:
    api.admin.post("/api/v1/admin/pools", json={"name": "chat", "base_model": base.id}).raise_for_status()
    return "chat"


def test_a_pool_has_a_rate_of_its_own_and_the_report_names_pools_without_one(api, engine, chat):
    ran(engine, pool=chat)
    report = api.admin.get("/api/v1/admin/costs", params=PERIOD).raise_for_status().json()
    assert report["unrated"] == [{"base_model": BASE, "rank_max": 16, "pool": chat}]
    group = {name: value for name, value in RATE.items() if name != "pool"}
    for body in (group, RATE | {"pool": chat, "nanos_per_hour": 7_200_000_000}):
        added = add(api, "rates", body)
        assert (added.status_code, added.json()["pool"]) == (201, body.get("pool", "")), added.text
    listed = api.admin.get("/api/v1/admin/costs/rates").json()["data"]
    assert [(rate["pool"], rate["nanos_per_hour"]) for rate in listed] == [("", 3_600_000_000), (chat, 7_200_000_000)]
    assert allocate_due(engine, CostSettings()).hours == 1
    report = api.admin.get("/api/v1/admin/costs", params=PERIOD).json()
    assert (report["unrated"], report["total_nanos"]) == ([], 120_000_000)
    (line,) = csv.DictReader(io.StringIO(api.admin.get("/api/v1/admin/costs/focus.csv", params=PERIOD).text))
    assert line["x_Pool"] == chat


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"pool": "none"}, "pool_not_found"),
        ({"pool": "chat", "rank_max": 64}, "pool_mismatch"),
        ({"pool": "chat", "base_model": "other"}, "pool_mismatch"),
        ({"pool": "Chat"}, "invalid_value"),
    ],
)
def test_a_rate_of_no_such_pool_is_refused(api, chat, changes, code):
    refused = add(api, "rates", RATE | changes)
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (400, code, "pool"), refused.text
    assert api.admin.get("/api/v1/admin/costs/rates").json()["data"] == []


@pytest.fixture
def served(api, base, engine, record):
    """A tenant whose adapter had one request in the hour, on a replica without a rate."""
    tenant = api.tenant()
    adapter = tenant.adapter("router", base)
    with engine.begin() as connection:
        version = connection.exec_driver_sql("SELECT id FROM price_versions LIMIT 1").scalar_one()
    at = HOUR + timedelta(seconds=20)
    record(
        used(
            tenant.id, at, request_id=first_id_of_ms("req", clock.to_ms(HOUR)), adapter_id=adapter["id"],
            input_tokens=1_000, cached_tokens=0, output_tokens=5, kv_page_ms=0, price_version_id=version,
        )
    )  # fmt: skip
    return tenant, adapter["id"]


def rows_of(api, group_by: str) -> list[dict]:
    answer = api.admin.get("/api/v1/admin/costs", params=PERIOD | {"group_by": group_by})
    return answer.raise_for_status().json()["rows"]


def test_rows_carry_names_and_no_margin_before_the_replica_has_a_rate(api, served, engine):
    tenant, adapter_id = served
    ran(engine, busy_ms=900)
    of_model = (BASE, None)
    names = {"tenant": ("Acme", None), "adapter": ("router", "Acme"), "plan": (tenant.plan, None), "model": of_model}
    for group_by, expected in names.items():
        (row,) = rows_of(api, group_by)
        assert ((row["name"], row["tenant"]), row["margin_nanos"], row["margin_ppm"]) == (expected, None, None)
    add(api, "rates", RATE).raise_for_status()
    assert allocate_due(engine, CostSettings()).hours == 1
    (row,) = rows_of(api, "adapter")
    assert (row["key"], row["tenant_id"]) == (adapter_id, tenant.id)
    assert row["margin_nanos"] == row["revenue_nanos"] - row["cost_nanos"] < row["revenue_nanos"]
    answer = api.admin.get("/api/v1/admin/costs/focus.csv", params=PERIOD)
    lines = csv.DictReader(io.StringIO(answer.text))
    named = {line["AllocatedResourceId"]: line["AllocatedResourceName"] for line in lines}
    assert named == {adapter_id: "router", "": ""}


def test_the_focus_file_names_the_operator_as_its_issuer(api, engine, idle_minute):
    def issuer() -> str:
        answer = api.admin.get("/api/v1/admin/costs/focus.csv", params=PERIOD)
        (line,) = csv.DictReader(io.StringIO(answer.text))
        return line["InvoiceIssuerName"]

    assert issuer() == "Tenora"
    with unit_of_work(engine) as session:
        profiles.set_seller(session, Seller(legal_name="Ada's Models Ltd"))
    assert issuer() == "Ada's Models Ltd"
