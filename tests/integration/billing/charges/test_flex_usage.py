"""Flex usage from the stream to the invoice: recorded, summed, billed and explained at the batch factor."""

import msgspec
import pytest
import sqlalchemy as sa

from billing.documents.invoice_lines import invoice_csv
from billing.documents.printed import printed_invoice
from billing.invoices import queries
from billing.prices.card import IncludedUsage, PriceCard, PriceTier, TieredPrice
from billing.usage.amendments import AmendedQuantities, amend
from core.contracts.grants import Prices
from core.db import unit_of_work
from tests.integration.billing.conftest import PRICES
from tests.integration.billing.documents.test_explain import explained, recorded, used_of

HALF = msgspec.structs.replace(PriceCard.of_all_models(PRICES), batch_factor_permille=500)
NOTHING = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "kv_page_ms": 0}
TIERED = msgspec.structs.replace(
    HALF,
    tiers=(
        TieredPrice(
            quantity="output_tokens",
            mode="graduated",
            tiers=(PriceTier(up_to=30, unit_price_nanos=7), PriceTier(up_to=None, unit_price_nanos=4)),
        ),
        TieredPrice(quantity="cached_input_tokens", mode="package", package_units=50, package_nanos=101),
    ),
    included=(IncludedUsage(quantity="uncached_input_tokens", units=60),),
)


@pytest.mark.scenario(16)
def test_a_million_flex_tokens_cost_half_and_the_line_shows_list_price_discount_and_net(stage):
    tenant = stage.tenant(card=HALF)
    stage.bill(
        stage.event(tenant, **NOTHING | {"output_tokens": 1_000_000}, service_tier="flex"),
        stage.event(tenant, **NOTHING | {"output_tokens": 1_000}),
    )
    records = {row["service_tier"]: row for row in stage.rows("SELECT * FROM usage_records")}
    assert records["flex"]["amount_nanos"] == 300_000_000
    assert records["default"]["amount_nanos"] == 600_000
    assert stage.value("SELECT count(*) FROM usage_hours") == 2, "two tiers of one model do not mix"
    (invoice,) = stage.close()
    default, flex = stage.invoice(invoice.id).lines
    assert (default.service_tier, default.list_price_nanos, default.batch_discount_nanos) == (None, None, 0)
    assert (flex.service_tier, flex.list_price_nanos, flex.unit_price_nanos) == ("flex", 600, 300)
    assert (flex.batch_discount_nanos, flex.amount_nanos) == (300_000_000, 300_000_000)
    assert flex.quantity * flex.unit_price_nanos == flex.amount_nanos
    header, _, row = (line.rstrip("\r\n").split(",") for line in invoice_csv(invoice, (default, flex)))
    shown = dict(zip(header, row, strict=True))
    assert (shown["service_tier"], float(shown["list_price_usd"])) == ("flex", 0.0000006)
    assert (float(shown["batch_discount_usd"]), float(shown["amount_usd"])) == (0.3, 0.3)
    with unit_of_work(stage.engine) as session:
        document = queries.read_document(session, invoice.id)
    printed = printed_invoice(document, lines_max=10).rows[1]
    assert "flex, list price $0.60 per million, less $0.30" in printed.description
    assert (printed.unit_price, printed.amount) == ("$0.30 per million", "$0.30")
    explained(stage, invoice.id)


def test_tiers_and_included_usage_count_both_service_tiers(stage):
    """The others take the included units and the first tier; flex pays half of the price that it reaches."""
    tenant = stage.tenant(card=TIERED)
    stage.bill(
        stage.event(tenant, **NOTHING | {"input_tokens": 10, "output_tokens": 10}, service_tier="flex"),
        stage.event(tenant, **NOTHING | {"input_tokens": 65, "output_tokens": 25}),
    )
    (invoice,) = stage.close()
    lines = stage.invoice(invoice.id).lines
    assert {line.service_tier for line in lines if line.description == "included"} == {None}
    found = [
        (line.kind, line.service_tier, int(line.quantity), line.unit_price_nanos, line.list_price_nanos)
        for line in lines
        if line.service_tier == "flex" or line.tier is not None
    ]
    assert found == [
        ("uncached_input_tokens", "flex", 10, 75, 150),
        ("output_tokens", None, 25, 7, None),
        ("output_tokens", "flex", 5, 3, 7),
        ("output_tokens", "flex", 5, 2, 4),
    ]
    assert used_of(stage, explained(stage, invoice.id)) == recorded(stage)


def test_an_amended_flex_request_still_pays_the_batch_factor(stage):
    tenant = stage.tenant(card=HALF)
    event = stage.event(tenant, **NOTHING | {"output_tokens": 100}, service_tier="flex")
    stage.bill(event)
    with unit_of_work(stage.engine) as session:
        view = amend(session, event.request_id, AmendedQuantities(output_tokens=60), reason="test", actor="test")
    assert view.charged_nanos == 60 * 300
    (hour,) = stage.rows("SELECT service_tier, output_tokens, output_nanos FROM usage_hours")
    assert tuple(hour.values()) == ("flex", 60, 18_000)


def test_the_database_knows_only_these_tiers(stage):
    tenant = stage.tenant(Prices(input_nanos=1, cached_input_nanos=1, output_nanos=1, kv_page_second_nanos=1))
    stage.bill(stage.event(tenant))
    with pytest.raises(sa.exc.IntegrityError, match="service_tier_known"):
        stage.change("ALTER TABLE usage_records DISABLE TRIGGER USER; UPDATE usage_records SET service_tier = 'x'")
