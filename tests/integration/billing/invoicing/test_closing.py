"""A closed period gives invoices that add up, are written once and never bill a request twice."""

import threading
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from billing.invoices.views import InvoiceView
from billing.invoicing import closing
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import InvalidRequest
from core.money import cents_to_nanos, round_to_cents
from core.struct_types import view_of
from tests.conftest import wait_until

DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_003, output_nanos=600_007, kv_page_second_nanos=1_000_001)


def test_an_invoice_lists_every_quantity_by_model_and_adds_up_to_the_records(stage):
    tenant = stage.tenant(DEAR)
    stage.bill(
        stage.event(tenant, settled_at_ms=stage.ago_ms(minutes=9)),
        stage.event(tenant, adapter_id="ad_1", settled_at_ms=stage.ago_ms(minutes=5)),
        stage.event(tenant, adapter_id="ad_1", cached_tokens=0, kv_page_ms=999),
        stage.event(tenant, adapter_id="ad_2", output_tokens=0),
    )
    records = stage.value("SELECT sum(amount_nanos) FROM usage_records")
    until = stage.now()
    (closed,) = stage.close(until)
    detail = stage.invoice(closed.id)
    assert view_of(detail, InvoiceView) == closed
    assert closed.number == "TNR-000001"
    assert (closed.status, closed.currency, closed.period_end) == ("open", "usd", until)
    assert closed.period_start == stage.value("SELECT min(settled_at) FROM usage_records")
    assert [(line.adapter_id, line.kind, line.quantity, line.request_count) for line in detail.lines] == [
        (None, "uncached_input_tokens", 68, 1),
        (None, "cached_input_tokens", 32, 1),
        (None, "output_tokens", 20, 1),
        (None, "kv_page_seconds", Decimal("1.601"), 1),
        ("ad_1", "uncached_input_tokens", 168, 2),
        ("ad_1", "cached_input_tokens", 32, 1),
        ("ad_1", "output_tokens", 40, 2),
        ("ad_1", "kv_page_seconds", Decimal("2.6"), 2),
        ("ad_2", "uncached_input_tokens", 68, 1),
        ("ad_2", "cached_input_tokens", 32, 1),
        ("ad_2", "kv_page_seconds", Decimal("1.601"), 1),
    ]
    assert sum(line.amount_nanos for line in detail.lines) == closed.amount_nanos == records
    assert {line.unit for line in detail.lines if line.kind != "kv_page_seconds"} == {"token"}
    assert sum(line.amount_cents for line in detail.lines) == closed.total_cents == round_to_cents(records) > 0
    assert stage.balance("usage_unbilled", tenant) == 0
    assert stage.balance("receivable", tenant) == cents_to_nanos(closed.total_cents)
    assert stage.balance("rounding") == records - cents_to_nanos(closed.total_cents)


def test_a_period_cannot_end_in_the_future_or_without_an_offset(stage):
    with pytest.raises(InvalidRequest, match="in the future"):
        stage.close(stage.now() + timedelta(minutes=1))
    with pytest.raises(InvalidRequest, match="offset"):
        stage.close(datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


@pytest.mark.scenario(163)
def test_a_tenant_that_cannot_be_closed_stops_no_other(stage):
    stuck, other = stage.tenant(), stage.tenant()
    stage.bill(stage.event(stuck), stage.event(other))
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM subscriptions WHERE tenant_id = %s FOR UPDATE", (stuck,))
        made, failed = closing.close_all(stage.engine, least_cents=0)
    assert [invoice.tenant_id for invoice in made] == [other]
    assert failed == [stuck]
    assert [invoice.tenant_id for invoice in stage.close()] == [stuck]


def test_usage_that_is_recorded_while_a_period_closes_is_late_for_the_next_invoice(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant))
    late = stage.event(tenant, output_tokens=9)
    recorded = threading.Thread(target=stage.bill, args=(late,))
    with unit_of_work(stage.engine) as session:
        lock_billed_until(session, tenant)
        until = stage.now()
        recorded.start()
        wait_until(
            lambda: stage.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, what="the recording to wait"
        )
        advance_billed_until(session, tenant, until)
    recorded.join()
    assert stage.value("SELECT late_from FROM usage_records WHERE output_tokens = 9") == until
    (invoice,) = stage.close()
    assert [line.quantity for line in stage.invoice(invoice.id).lines if line.kind == "output_tokens"] == [9]
