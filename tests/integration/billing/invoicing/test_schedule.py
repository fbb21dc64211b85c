"""The schedule closes ended periods after their grace, each on its own."""

from datetime import timedelta

import pytest

from billing.invoicing.schedule import PeriodSchedule
from core import clock
from core.contracts.grants import Prices
from tests.integration.billing.conftest import month_start

HOUR = timedelta(hours=1)
DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_000, output_nanos=600_000, kv_page_second_nanos=1_000_000)


def test_an_ended_month_is_invoiced_once_and_the_running_one_is_not(stage):
    tenant = stage.tenant(DEAR)
    last_month, this_month = (month_start(stage.now(), ago=ago) for ago in (1, 0))
    last = stage.event(tenant, settled_at_ms=clock.to_ms(this_month) - 1, output_tokens=7)
    stage.bill(last, stage.event(tenant, settled_at_ms=clock.to_ms(this_month), output_tokens=9))
    months = stage.rows("SELECT month, output_tokens FROM usage_months ORDER BY month")
    assert [tuple(row.values()) for row in months] == [(last_month, 7), (this_month, 9)]
    for _ in range(2):
        PeriodSchedule(stage.engine, grace=timedelta(0)).run_once()
        (invoice,) = stage.rows("SELECT * FROM invoices")
        assert invoice["period_end"] == this_month
        assert stage.value("SELECT quantity FROM invoice_lines WHERE kind = 'output_tokens'") == 7
    (following,) = stage.close()
    outputs = [line.quantity for line in stage.invoice(following.id).lines if line.kind == "output_tokens"]
    assert outputs == [9]


@pytest.mark.scenario(62)
def test_a_period_stays_open_for_late_usage_until_its_grace_is_over(stage):
    tenant = stage.tenant(DEAR)
    now = stage.now()
    this_month = month_start(now, ago=0)
    stage.bill(stage.event(tenant, settled_at_ms=clock.to_ms(this_month) - 10))
    PeriodSchedule(stage.engine, grace=now - this_month + HOUR).run_once()
    assert stage.value("SELECT count(*) FROM invoices") == 0
    stage.bill(stage.event(tenant, settled_at_ms=clock.to_ms(this_month) - 5, output_tokens=30))
    PeriodSchedule(stage.engine, grace=timedelta(0)).run_once()
    assert stage.value("SELECT quantity FROM invoice_lines WHERE kind = 'output_tokens'") == 50
    assert stage.value("SELECT count(*) FROM usage_records WHERE late_from IS NOT NULL") == 0


@pytest.mark.scenario(63)
def test_usage_that_arrives_after_the_invoice_is_marked_late_on_the_next(stage):
    tenant = stage.tenant(DEAR)
    this_month = month_start(stage.now(), ago=0)
    stage.bill(stage.event(tenant, settled_at_ms=clock.to_ms(this_month) - 10))
    PeriodSchedule(stage.engine, grace=timedelta(0)).run_once()
    before = stage.rows("SELECT * FROM invoices")
    stage.bill(stage.event(tenant, settled_at_ms=clock.to_ms(this_month) - 5, output_tokens=30))
    stage.bill(stage.event(tenant, output_tokens=1))
    (invoice,) = stage.close()
    outputs = [line for line in stage.invoice(invoice.id).lines if line.kind == "output_tokens"]
    assert [(line.quantity, line.late_for) for line in outputs] == [(1, None), (30, month_start(this_month, ago=1))]
    assert stage.rows("SELECT * FROM invoices WHERE id <> :i", i=invoice.id) == before


@pytest.mark.scenario(50)
def test_each_missed_period_gets_an_invoice_of_its_own_in_order(stage):
    tenant = stage.tenant(DEAR)
    now = stage.now()
    starts = [month_start(now, ago=months) for months in (3, 2, 1, 0)]
    for number, start in enumerate(starts[:3]):
        if number != 1:  # a month without usage ends without an invoice
            stage.bill(stage.event(tenant, settled_at_ms=clock.to_ms(start) + 5_000, output_tokens=number + 1))
    PeriodSchedule(stage.engine, grace=timedelta(0)).run_once()
    invoices = stage.rows("SELECT * FROM invoices ORDER BY period_end")
    assert [row["period_end"] for row in invoices] == [starts[1], starts[3]]
    assert [row["period_start"] for row in invoices][1] == starts[2]
    assert stage.value("SELECT billed_until FROM subscriptions") == starts[3]


@pytest.mark.scenario(64)
def test_usage_of_three_months_ago_is_billed_at_its_price_and_older_usage_is_a_dead_letter(stage):
    tenant = stage.tenant(DEAR)
    old, ancient = (stage.event(tenant, settled_at_ms=stage.ago_ms(days=days)) for days in (90, 401))
    stage.bill(old, ancient)
    for _ in range(3):
        stage.retry_pending()
    assert stage.value("SELECT count(*) FROM usage_records") == 1
    (letter,) = stage.dead_letters()
    assert letter[b"code"] == b"too_late"
    assert b"400 days" in letter[b"reason"]
