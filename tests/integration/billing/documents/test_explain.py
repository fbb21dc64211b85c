"""Every line of an invoice is explained by its requests: rated again they are equal, and they sum to the line."""

import tracemalloc
from collections import Counter
from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from benchmarks.billing import seed as seeding
from billing.documents.explain import LineReader
from billing.prices import price_book
from billing.prices.card import IncludedUsage, ModelCardPrices, PriceCard, PriceTier, TieredPrice
from billing.prices.quantities import QUANTITIES
from core import clock
from core.contracts.grants import Prices
from core.db import unit_of_work

DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_003, output_nanos=600_007, kv_page_second_nanos=1_000_001)
PLAIN = {"input_nanos": 100, "cached_input_nanos": 10, "output_nanos": 400, "kv_page_second_nanos": 1_003}


def explained(stage, invoice_id: str, *, limit: int = 2) -> dict:
    """Each line with its requests, read in pages, checked against the line itself."""
    detail = stage.invoice(invoice_id)
    found = {}
    with unit_of_work(stage.engine) as session:
        for line in detail.lines:
            if line.kind not in QUANTITIES:
                continue
            reader, requests, after = LineReader(session, detail, line), [], None
            while True:
                page = reader.read(after, limit=limit)
                assert len(page.requests) <= limit
                requests += page.requests
                if (after := page.following) is None:
                    break
            explanation = reader.explain()
            assert explanation.matches, (line, explanation.found_quantity, explanation.found_nanos)
            used = line.quantity if line.used_units is None else line.used_units
            assert sum(each.line_quantity for each in requests) == used == explanation.found_quantity
            assert sum(each.amount_nanos for each in requests) == line.amount_nanos == explanation.found_nanos
            assert all(each.rerated_equal for each in requests)
            assert all(each.recorded_nanos == each.rerated_nanos for each in requests)
            assert all(each.line_quantity > 0 for each in requests)
            keys = [(each.settled_at, each.request_id) for each in requests]
            assert keys == sorted(set(keys))
            found[line.id] = requests
    return found


def used_of(stage, found: dict) -> Counter:
    """The quantity of each record and kind over all lines."""
    totals: Counter = Counter()
    for line in stage.rows("SELECT id, kind FROM invoice_lines"):
        for request in found.get(line["id"], ()):
            totals[line["kind"], request.request_id] += request.line_quantity
    return totals


def recorded(stage) -> dict:
    return {
        (kind, row["request_id"]): Decimal(row[kind])
        for row in stage.rows(
            "SELECT request_id, input_tokens - cached_tokens AS uncached_input_tokens, cached_tokens AS"
            " cached_input_tokens, output_tokens, kv_page_ms / 1000.0::numeric AS kv_page_seconds FROM usage_records"
        )
        for kind in QUANTITIES
        if row[kind]
    }


def test_an_hour_in_which_periods_meet_is_shared_exactly(stage):
    tenant = stage.tenant(DEAR)
    hour = stage.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    at = [hour + timedelta(minutes=minutes) for minutes in (5, 20, 29, 30, 31, 59)]
    stage.bill(*(stage.event(tenant, settled_at_ms=clock.to_ms(each)) for each in at))
    cut = hour + timedelta(minutes=30)
    (first,) = stage.close(cut)
    (second,) = stage.close()
    settled = [
        {request.settled_at for requests in explained(stage, each.id).values() for request in requests}
        for each in (first, second)
    ]
    assert settled == [{each for each in at if each < cut}, {each for each in at if each >= cut}]


def test_an_estimate_and_its_rest_are_both_shown(stage):
    tenant = stage.tenant(DEAR)
    estimate = stage.event(tenant, outcome="gateway_gone", estimated=True, output_tokens=3, cached_tokens=100)
    stage.bill(estimate)
    stage.bill(msgspec.structs.replace(estimate, estimated=False, outcome="done", output_tokens=20))
    (invoice,) = stage.close()
    ids = {request.request_id for requests in explained(stage, invoice.id).values() for request in requests}
    assert ids == {estimate.request_id, f"{estimate.request_id}:rest"}


GRADUATED = TieredPrice(
    quantity="output_tokens",
    mode="graduated",
    tiers=(
        PriceTier(up_to=30, unit_price_nanos=400),
        PriceTier(up_to=55, unit_price_nanos=300),
        PriceTier(up_to=None, unit_price_nanos=7),
    ),
)
VOLUME = TieredPrice(
    quantity="kv_page_seconds",
    mode="volume",
    tiers=(PriceTier(up_to=5, unit_price_nanos=1_003), PriceTier(up_to=None, unit_price_nanos=777)),
)
PACKAGE = TieredPrice(quantity="uncached_input_tokens", mode="package", package_units=100, package_nanos=9_999)


def test_tiers_are_shared_out_to_requests_in_the_order_in_which_they_settled(stage):
    tenant = stage.tenant(card=PriceCard(**PLAIN, tiers=(GRADUATED,)))
    events = [
        stage.event(tenant, settled_at_ms=stage.ago_ms(minutes=50 - 10 * n), adapter_id=f"ad_{n}") for n in range(4)
    ]
    stage.bill(*reversed(events))
    (invoice,) = stage.close()
    found = explained(stage, invoice.id)
    tiers = {line.tier: found[line.id] for line in stage.invoice(invoice.id).lines if line.tier is not None}
    # 4 x 20 tokens on tiers of 30, 25 and the rest
    assert {tier: [(each.request_id, each.line_quantity) for each in requests] for tier, requests in tiers.items()} == {
        1: [(events[0].request_id, 20), (events[1].request_id, 10)],
        2: [(events[1].request_id, 10), (events[2].request_id, 15)],
        3: [(events[2].request_id, 5), (events[3].request_id, 20)],
    }
    assert [each.amount_nanos for each in tiers[3]] == [35, 140]
    assert used_of(stage, found) == Counter(recorded(stage))


def test_every_mode_of_tiers_with_models_versions_and_late_usage_sums_to_its_lines(stage):
    own = msgspec.structs.replace(GRADUATED, base_model="large", tiers=GRADUATED.tiers[1:])
    card = PriceCard(
        **PLAIN, models=(ModelCardPrices(base_model="large", **PLAIN),), tiers=(GRADUATED, VOLUME, PACKAGE, own)
    )
    tenant = stage.tenant(card=card)
    models = ("small", "medium", "large")
    stage.bill(
        *(
            stage.event(
                tenant, base_model=models[n % 3], settled_at_ms=stage.ago_ms(minutes=11 * n), kv_page_ms=701 + n,
                adapter_id=f"ad_{n % 2}", output_tokens=n % 23, key_id=f"key_{n % 4}",
            )
            for n in range(1, 40)
        )
    )  # fmt: skip
    with unit_of_work(stage.engine) as session:
        cheaper = msgspec.structs.replace(card, output_nanos=399)
        price_book.add_version(session, plan_id=stage.plan_of(tenant), card=cheaper)
    stage.bill(*(stage.event(tenant, base_model=models[n % 3], started_at_ms=clock.now_ms() + 50) for n in range(7)))
    (invoice,) = stage.close()
    assert {line.price_version_id for line in stage.invoice(invoice.id).lines} != {None}
    found = explained(stage, invoice.id, limit=5)
    assert used_of(stage, found) == Counter(recorded(stage))
    before = recorded(stage).keys()
    stage.bill(
        *(stage.event(tenant, base_model=models[n % 3], settled_at_ms=stage.ago_ms(days=20 * n)) for n in range(1, 6)),
        *(stage.event(tenant, base_model="small") for _ in range(3)),
    )
    (invoice,) = stage.close()
    found = explained(stage, invoice.id, limit=3)
    assert used_of(stage, found) == Counter({key: used for key, used in recorded(stage).items() if key not in before})


INCLUDED = (
    IncludedUsage(quantity="output_tokens", units=50),
    IncludedUsage(quantity="cached_input_tokens", units=70, base_model="small"),
    IncludedUsage(quantity="kv_page_seconds", units=3),
)


def test_included_units_are_the_first_of_each_adapter_and_the_rest_is_in_tiers_or_priced(stage):
    tenant = stage.tenant(card=PriceCard(**PLAIN, tiers=(VOLUME, PACKAGE), included=INCLUDED))
    stage.bill(
        *(
            stage.event(
                tenant, base_model=("small", "medium")[n % 2], settled_at_ms=stage.ago_ms(minutes=13 * n),
                adapter_id=f"ad_{n % 3}", kv_page_ms=997 + n, output_tokens=9 + n % 5,
            )
            for n in range(1, 20)
        )
    )  # fmt: skip
    (invoice,) = stage.close()
    lines = {line.id: line for line in stage.invoice(invoice.id).lines}
    free = [line_id for line_id, line in lines.items() if line.description == "included"]
    assert free
    found = explained(stage, invoice.id, limit=4)
    assert used_of(stage, found) == Counter(recorded(stage))
    assert {request.amount_nanos for line_id in free for request in found[line_id]} == {0}


@pytest.mark.scenario(111)
@pytest.mark.parametrize("requests", [1_100, pytest.param(40_000, marks=pytest.mark.soak)])
def test_a_line_of_thousands_of_requests_is_explained_in_pages(stage, monkeypatch, requests):
    monkeypatch.setattr(seeding, "_RECORDS", seeding._RECORDS.replace("(n % :adapters)", "0"))
    seeding.seed(stage.engine, prefix="tn_many_", tenants=1, records=requests, first=1)
    (invoice,) = stage.close()
    detail = stage.invoice(invoice.id)
    with unit_of_work(stage.engine) as session:
        for line in detail.lines[:1]:
            reader, seen, nanos, quantity, after = LineReader(session, invoice, line), set(), 0, 0, None
            tracemalloc.start()
            while True:
                page = reader.read(after, limit=1_000)
                seen |= {hash(each.request_id) for each in page.requests}
                nanos += sum(each.amount_nanos for each in page.requests)
                quantity += sum(each.line_quantity for each in page.requests)
                assert all(each.rerated_equal for each in page.requests)
                if (after := page.following) is None:
                    break
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert line.request_count == len(seen) == requests
            assert (nanos, quantity) == (line.amount_nanos, line.quantity)
            assert reader.explain().matches
            assert peak < 20_000_000, "a page at a time"


def test_a_line_that_differs_from_its_requests_says_so(stage):
    """A line whose sums differ from its records, as after a loss of data, says so instead of hiding it."""
    tenant = stage.tenant(DEAR)
    stage.bill(*(stage.event(tenant, settled_at_ms=stage.ago_ms(hours=2 * n)) for n in range(3)))
    (invoice,) = stage.close()
    stage.change("UPDATE usage_hours SET output_tokens = output_tokens + 1, output_nanos = output_nanos + 1")
    detail = stage.invoice(invoice.id)
    with unit_of_work(stage.engine) as session:
        matches = {
            line.kind: LineReader(session, invoice, line).explain().matches for line in detail.lines
        }  # fmt: skip
    assert matches["uncached_input_tokens"]
    assert not matches["output_tokens"]
