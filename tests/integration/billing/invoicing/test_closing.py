"""A closed period gives invoices that add up, are written once and never bill a request twice."""

import random
import threading
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
import pytest

from billing import ledger
from billing.invoices.views import InvoiceView
from billing.invoicing import closing
from billing.ledger import AccountRef
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until
from core import clock
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import InvalidRequest
from core.money import cents_to_nanos, round_to_cents
from core.struct_types import view_of
from tests.conftest import wait_until
from tests.fixtures.together import together

DEAR = Prices(input_nanos=150_000, cached_input_nanos=75_003, output_nanos=600_007, kv_page_second_nanos=1_000_001)


def balance(stage, account: AccountRef) -> int:
    with unit_of_work(stage.engine) as session:
        return ledger.balance_nanos(session, account)


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
    assert balance(stage, AccountRef("usage_unbilled", tenant)) == 0
    assert balance(stage, AccountRef("receivable", tenant)) == cents_to_nanos(closed.total_cents)
    assert balance(stage, AccountRef("rounding")) == records - cents_to_nanos(closed.total_cents)


def test_a_period_cannot_end_in_the_future_or_without_an_offset(stage):
    with pytest.raises(InvalidRequest, match="in the future"):
        stage.close(stage.now() + timedelta(minutes=1))
    with pytest.raises(InvalidRequest, match="offset"):
        stage.close(datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


@pytest.mark.scenario(66)
def test_the_order_and_the_batches_of_events_do_not_change_the_invoice(stage):
    begun = stage.now() - timedelta(hours=5)
    seen = []
    for seed in range(2):
        tenant = stage.tenant()
        events = [
            stage.event(
                tenant,
                settled_at_ms=clock.to_ms(begun) + 977 * number * 10,
                adapter_id=f"ad_{number % 7}" if number % 3 else None,
                output_tokens=number,
            )
            for number in range(300)
        ]
        order = random.Random(seed)
        order.shuffle(events)
        while events:
            taken = order.randrange(1, 100)
            stage.bill(*events[:taken])
            del events[:taken]
        invoice = closing.close_tenant(stage.engine, tenant, stage.now())
        lines = stage.invoice(invoice.id).lines
        version = lines[0].price_version_id
        seen.append([msgspec.json.encode(msgspec.structs.replace(line, id="", price_version_id="")) for line in lines])
        assert {line.price_version_id for line in lines} == {version}
    assert seen[0] == seen[1]


def test_a_period_inside_one_hour_counts_only_what_lies_in_it(stage):
    tenant = stage.tenant()
    hour = stage.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    at = [hour + timedelta(minutes=minutes) for minutes in (5, 15, 25, 35)]
    stage.bill(
        *(stage.event(tenant, settled_at_ms=clock.to_ms(each), output_tokens=10 + k) for k, each in enumerate(at))
    )
    made = [
        closing.close_tenant(stage.engine, tenant, hour + timedelta(minutes=minutes), least_cents=0)
        for minutes in (10, 30, 90)
    ]
    outputs = [
        [line.quantity for line in stage.invoice(invoice.id).lines if line.kind == "output_tokens"] for invoice in made
    ]
    assert outputs == [[10], [11 + 12], [13]]


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


def test_two_concurrent_closes_bill_everything_once(stage):
    tenants = [stage.tenant() for _ in range(5)]
    stage.bill(*(stage.event(tenant) for tenant in tenants for _ in range(20)))
    closed = [invoice for made in together(*[stage.close] * 4) for invoice in made]
    assert sorted(invoice.tenant_id for invoice in closed) == sorted(tenants)
    assert {invoice.number for invoice in closed} == {f"TNR-{number:06d}" for number in range(1, 6)}


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


def test_a_close_that_fails_leaves_no_trace(stage, monkeypatch):
    stage.bill(stage.event(stage.tenant()))

    def fail(*_args, **_kwargs) -> None:
        raise AssertionError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "post", fail)
        assert len(closing.close_all(stage.engine, least_cents=0).failed) == 1
    assert stage.value("SELECT count(*) FROM invoice_lines") == 0
    (closed,) = stage.close()
    assert closed.number == "TNR-000001"
