"""What single requests cost, and what double and changed events do to it: from the stream to the invoice."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest

from billing import metrics
from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.usage.metering import Meter
from billing.usage.stream import UsageStream
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.rating import rate
from tests.integration.billing.conftest import PRICES

RECORDS = 500
NOTHING = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "kv_page_ms": 0}

COSTS = [
    pytest.param(
        PRICES,
        {"input_tokens": 1_000, "cached_tokens": 200, "output_tokens": 50, "kv_page_ms": 4_500},
        {"input_nanos": 120_000, "cached_input_nanos": 15_000, "output_nanos": 30_000, "kv_nanos": 4_500},
        4,
        marks=pytest.mark.scenario(1),
        id="each quantity at its price",
    ),
    pytest.param(
        msgspec.structs.replace(PRICES, kv_page_second_nanos=333),
        NOTHING | {"kv_page_ms": 1_999},
        {"kv_nanos": 665},
        1,
        marks=pytest.mark.scenario(2),
        id="page-time is cut below a nanodollar",
    ),
    pytest.param(PRICES, NOTHING, {}, 0, marks=pytest.mark.scenario(3), id="nothing used is a record and no line"),
]


@pytest.mark.parametrize(("prices", "used", "nanos", "lines"), COSTS)
def test_a_request_costs_what_its_quantities_cost(stage, prices: Prices, used, nanos, lines):
    tenant = stage.tenant(prices)
    stage.bill(stage.event(tenant, **used))
    (record,) = stage.rows("SELECT * FROM usage_records")
    parts = {"input_nanos": 0, "cached_input_nanos": 0, "output_nanos": 0, "kv_nanos": 0} | nanos
    assert {name: record[name] for name in parts} == parts
    assert record["amount_nanos"] == sum(nanos.values())
    invoices = stage.close()
    assert len(invoices) == (lines > 0)
    assert [len(stage.invoice(invoice.id).lines) for invoice in invoices] == [lines] * len(invoices)
    assert sum(invoice.amount_nanos for invoice in invoices) == sum(nanos.values())


@pytest.mark.scenario(18)
def test_stored_records_are_rated_again_to_the_same_bytes(stage):
    """With one price changed by a nanodollar, the difference is exactly the tokens times it."""
    chance, tenant = random.Random(18), stage.tenant()
    events = []
    for _ in range(RECORDS):
        input_tokens = chance.randrange(4_000)
        events.append(
            stage.event(
                tenant, input_tokens=input_tokens, cached_tokens=chance.randrange(input_tokens + 1),
                output_tokens=chance.randrange(2_000), kv_page_ms=chance.randrange(10**7),
            )
        )  # fmt: skip
    stage.bill(*events)
    rows = stage.rows("SELECT * FROM usage_records ORDER BY request_id")
    assert len(rows) == RECORDS
    with unit_of_work(stage.engine) as session:
        versions = price_book.versions_by_id(session, {row["price_version_id"] for row in rows})

    def charges(**changed: int) -> list[dict[str, int]]:
        rated = []
        for row in rows:
            prices = versions[row["price_version_id"]].card.highest_prices(row["base_model"], row["rank_class"])
            used = msgspec.convert({name: row[name] for name in NOTHING}, Stored)
            charge = rate(used, msgspec.structs.replace(prices, **changed))
            rated.append({**msgspec.structs.asdict(charge), "amount_nanos": charge.amount_nanos})
        return rated

    again = charges()
    stored = [{name: row[name] for name in charge} for row, charge in zip(rows, again, strict=True)]
    assert msgspec.json.encode(again) == msgspec.json.encode(stored)
    dearer = sum(charge["amount_nanos"] for charge in charges(output_nanos=PRICES.output_nanos + 1))
    output_tokens = sum(row["output_tokens"] for row in rows)
    assert dearer - sum(row["amount_nanos"] for row in rows) == output_tokens


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_page_ms: int


@pytest.mark.scenario(60)
def test_an_event_that_arrives_a_thousand_times_through_two_workers_is_one_charge(stage):
    event = stage.event(stage.tenant())
    stage.publish(*[event] * 1_000)

    def work(name: str) -> None:
        stream = UsageStream(stage.redis, name)
        meter = Meter(stage.engine, stream, stage.settings)
        while entries := stream.read(count=50, block_ms=None):
            meter.process(entries)

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(work, ("one", "two")))
    assert (stage.pending, stage.dead_letters()) == (0, [])
    assert stage.value("SELECT count(*) FROM usage_records") == 1
    assert stage.value("SELECT count(*) FROM transfers") == 1
    assert stage.value("SELECT sum(requests) FROM usage_hours") == 1


@pytest.mark.scenario(61)
def test_the_same_id_with_other_tokens_is_a_dead_letter_with_both_values(stage):
    tenant = stage.tenant()
    first = stage.event(tenant, output_tokens=20)
    stage.bill(first)
    before = stage.rows("SELECT * FROM entries ORDER BY 1, 2")
    stage.publish(msgspec.structs.replace(first, output_tokens=30))
    stage.drain()
    for _ in range(stage.settings.billing_attempts_max):
        stage.retry_pending()
    (letter,) = stage.dead_letters()
    assert letter[b"code"] == b"conflict"
    assert b"output_tokens 20" in letter[b"reason"]
    assert b"30" in letter[b"reason"]
    assert msgspec.json.decode(letter[b"event"])["output_tokens"] == 30
    assert stage.rows("SELECT * FROM entries ORDER BY 1, 2") == before
    assert stage.value("SELECT output_tokens FROM usage_records") == 20


def test_prices_that_are_not_in_force_yet_are_counted_and_those_in_force_are_charged(stage):
    tenant = stage.tenant()
    dearer = PriceCard.of_all_models(msgspec.structs.replace(PRICES, output_nanos=1_000_000))
    with unit_of_work(stage.engine) as session:
        later = price_book.add_version(
            session, plan_id=stage.plan_of(tenant), card=dearer, effective_from=stage.now() + timedelta(hours=1)
        )
        now = price_book.load(session, [tenant]).in_force(tenant, stage.now())
    before = metrics.STALE_PRICES._value.get()
    used = NOTHING | {"output_tokens": 10}
    stage.bill(stage.event(tenant, price_version_id=now.id, **used))
    assert metrics.STALE_PRICES._value.get() == before
    stage.bill(stage.event(tenant, price_version_id=later.id, **used))
    assert metrics.STALE_PRICES._value.get() == before + 1
    assert {row["amount_nanos"] for row in stage.rows("SELECT amount_nanos FROM usage_records")} == {6_000}
