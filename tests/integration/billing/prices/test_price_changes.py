"""Of two price changes, the one that was made last holds, also where the database's clock was set back in between."""

from datetime import timedelta

import msgspec

from billing.prices import overrides, price_book
from billing.prices.card import PriceCard
from core import clock
from core.db import unit_of_work
from core.ids import new_id
from tests.integration.billing.conftest import PRICES

CARD = PriceCard.of_all_models(PRICES)
AHEAD = timedelta(seconds=30)  # of the clock that is set back
VERSION = """
INSERT INTO price_versions (id, plan_id, card, effective_from, created_at)
SELECT :v, :p, card, clock_timestamp() + :ahead, clock_timestamp() + :ahead FROM price_versions LIMIT 1
"""
OVERRIDE = """
INSERT INTO price_overrides (id, tenant_id, price_version_id, effective_from, created_at)
SELECT :o, :t, id, effective_from, created_at FROM price_versions WHERE id = :v
"""


def output(nanos: int) -> PriceCard:
    return msgspec.structs.replace(CARD, output_nanos=nanos)


def held(stage, tenant: str) -> int:
    """What output costs the tenant after all changes."""
    with unit_of_work(stage.engine) as session:
        at = stage.now() + 2 * AHEAD
        version = price_book.load(session, [tenant]).in_force(tenant, at)
    return version.card.output_nanos


def test_a_version_that_is_added_after_the_clock_was_set_back_begins_after_the_last_one(stage):
    tenant = stage.tenant()
    plan = stage.plan_of(tenant)
    stage.change(VERSION, v=new_id("pv"), p=plan, ahead=AHEAD)
    with unit_of_work(stage.engine) as session:
        price_book.add_version(session, plan_id=plan, card=output(1))
    assert held(stage, tenant) == 1


def test_a_version_that_is_added_before_a_scheduled_one_begins_at_once(stage):
    plan = stage.plan_of(stage.tenant())
    with unit_of_work(stage.engine) as session:
        later = price_book.add_version(session, plan_id=plan, card=CARD, effective_from=stage.now() + AHEAD)
        added = price_book.add_version(session, plan_id=plan, card=CARD)
    assert clock.to_ms(added.effective_from) < clock.to_ms(later.effective_from) - 10_000


def test_prices_of_a_tenant_that_are_set_after_the_clock_was_set_back_replace_the_last_ones(stage):
    tenant, before = stage.tenant(), new_id("pv")
    stage.change(VERSION, v=before, p=tenant, ahead=AHEAD)
    stage.change(OVERRIDE, o=new_id("po"), t=tenant, v=before)
    with unit_of_work(stage.engine) as session:
        overrides.add(session, tenant_id=tenant, card=output(1))
    assert held(stage, tenant) == 1


def test_prices_of_a_tenant_end_although_the_clock_was_set_back(stage):
    tenant, before = stage.tenant(), new_id("pv")
    stage.change(VERSION, v=before, p=tenant, ahead=AHEAD)
    stage.change(OVERRIDE, o=new_id("po"), t=tenant, v=before)
    with unit_of_work(stage.engine) as session:
        ended = overrides.end(session, tenant_id=tenant)
    with unit_of_work(stage.engine) as session:
        assert overrides.list_overrides(session, tenant)[-1].id == ended.id
        assert overrides.in_force(session, [tenant]) == {}
