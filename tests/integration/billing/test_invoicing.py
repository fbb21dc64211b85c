"""A closed period gives invoices that add up, are written once and never bill a request twice."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from billing import invoice_queries, invoicing, ledger
from billing import prices as price_book
from billing.ledger import AccountRef
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import InvalidRequest, Unavailable
from core.money import cents_to_nanos, round_to_cents

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
    assert detail.invoice == closed
    assert closed.number == "TNR-000001"
    assert (closed.status, closed.currency, closed.period_end) == ("finalised", "usd", until)
    assert closed.period_start == stage.value("SELECT min(settled_at) FROM usage_records")
    assert [(line.adapter_id, line.kind, line.quantity, line.request_count) for line in detail.lines] == [
        (None, "input_tokens", 68, 1),
        (None, "cached_input_tokens", 32, 1),
        (None, "output_tokens", 20, 1),
        (None, "kv_page_seconds", 1_601, 1),
        ("ad_1", "input_tokens", 168, 2),
        ("ad_1", "cached_input_tokens", 32, 1),
        ("ad_1", "output_tokens", 40, 2),
        ("ad_1", "kv_page_seconds", 2_600, 2),
        ("ad_2", "input_tokens", 68, 1),
        ("ad_2", "cached_input_tokens", 32, 1),
        ("ad_2", "kv_page_seconds", 1_601, 1),
    ]
    assert sum(line.amount_nanos for line in detail.lines) == closed.amount_nanos == records
    assert sum(line.amount_cents for line in detail.lines) == closed.total_cents > 0
    assert all(line.amount_cents == round_to_cents(line.amount_nanos) for line in detail.lines)
    assert balance(stage, AccountRef("usage_unbilled", tenant)) == 0
    assert balance(stage, AccountRef("receivable", tenant)) == cents_to_nanos(closed.total_cents)
    assert balance(stage, AccountRef("rounding")) == records - cents_to_nanos(closed.total_cents)


def test_every_tenant_gets_its_own_invoice_and_numbers_have_no_gaps(stage):
    tenants = [stage.tenant() for _ in range(3)]
    stage.bill(*(stage.event(tenant) for tenant in tenants))
    first = stage.close()
    stage.bill(stage.event(tenants[1]))
    second = stage.close()
    assert {invoice.tenant_id for invoice in first} == set(tenants)
    assert [invoice.number for invoice in first + second] == [f"TNR-{number:06d}" for number in (1, 2, 3, 4)]


def test_closing_again_without_new_usage_creates_no_invoice(stage):
    stage.bill(stage.event(stage.tenant()))
    assert len(stage.close()) == 1
    assert stage.close() == []
    assert stage.value("SELECT count(*) FROM invoices") == 1


def test_late_usage_is_on_the_next_invoice(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant, settled_at_ms=stage.ago_ms(hours=2)))
    (first,) = stage.close(stage.now() - timedelta(hours=1))
    late = stage.event(tenant, settled_at_ms=stage.ago_ms(hours=3), input_tokens=7, cached_tokens=0)
    stage.bill(late)
    assert stage.close(first.period_end) == []  # a period has length: late usage waits for a later end
    (second,) = stage.close()
    assert second.period_start == first.period_end
    assert stage.invoice(second.id).lines[0].quantity == 7
    assert stage.value("SELECT invoice_id FROM usage_records WHERE request_id = :r", r=late.request_id) == second.id


def test_usage_at_the_very_end_of_a_period_belongs_to_the_next(stage):
    tenant = stage.tenant()
    until = datetime.fromtimestamp(stage.ago_ms(minutes=1) / 1000, UTC)
    ms = int(until.timestamp() * 1000)
    stage.bill(stage.event(tenant, settled_at_ms=ms - 1), stage.event(tenant, settled_at_ms=ms, output_tokens=3))
    (first,) = stage.close(until)
    (second,) = stage.close()
    assert [line.quantity for line in stage.invoice(first.id).lines if line.kind == "output_tokens"] == [20]
    assert [line.quantity for line in stage.invoice(second.id).lines if line.kind == "output_tokens"] == [3]


def test_a_price_change_within_the_period_gives_one_line_per_price(stage):
    tenant = stage.tenant(DEAR)
    before = stage.event(tenant, settled_at_ms=stage.ago_ms(seconds=1))
    stage.bill(before)
    with unit_of_work(stage.engine) as session:
        changed = price_book.add_version(
            session, plan_id=stage.plan_of(tenant), prices=Prices(**{**_fields(DEAR), "output_nanos": 1})
        )
    after = stage.event(tenant, settled_at_ms=int(changed.effective_from.timestamp() * 1000) + 1)
    late = stage.event(tenant, settled_at_ms=stage.ago_ms(minutes=5))  # arrives late, is rated at the earlier prices
    stage.bill(after, late)
    stage.value("SELECT pg_sleep(0.005)")
    (closed,) = stage.close()
    lines = [line for line in stage.invoice(closed.id).lines if line.kind == "output_tokens"]
    assert {(line.unit_price_nanos, line.quantity) for line in lines} == {(600_007, 40), (1, 20)}
    assert len({line.price_version_id for line in lines}) == 2


def _fields(prices: Prices) -> dict[str, int]:
    return {name: getattr(prices, name) for name in prices.__struct_fields__}


def test_usage_that_costs_nothing_is_still_on_an_invoice(stage):
    free = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
    tenant = stage.tenant(free)
    stage.bill(stage.event(tenant))
    (closed,) = stage.close()
    assert (closed.total_cents, closed.amount_nanos) == (0, 0)
    assert stage.reconcile().invoiced_tokens == 120


def test_usage_without_any_quantity_waits_for_usage_that_has_some(stage):
    tenant = stage.tenant()
    nothing = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "kv_page_ms": 0}
    stage.bill(stage.event(tenant, **nothing))
    assert stage.close() == []
    stage.bill(stage.event(tenant))
    (closed,) = stage.close()
    assert stage.value("SELECT count(*) FROM usage_records WHERE invoice_id = :i", i=closed.id) == 2


def test_a_period_cannot_end_in_the_future_or_without_an_offset(stage):
    with pytest.raises(InvalidRequest, match="in the future"):
        stage.close(stage.now() + timedelta(minutes=1))
    with pytest.raises(InvalidRequest, match="offset"):
        stage.close(datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE invoices SET total_cents = 0",
        "DELETE FROM invoices",
        "UPDATE invoice_lines SET amount_nanos = 0",
        "DELETE FROM invoice_lines",
        "UPDATE entries SET amount_nanos = 0",
        "DELETE FROM entries",
        "UPDATE transfers SET kind = 'usage'",
        "DELETE FROM transfers",
        "UPDATE accounts SET tenant_id = 'tn_other' WHERE tenant_id IS NOT NULL",
        "UPDATE price_versions SET output_nanos = 0",
        "DELETE FROM plan_assignments",
        "UPDATE usage_records SET output_tokens = 0, output_nanos = 0",
        "UPDATE usage_records SET invoice_id = NULL",
        "UPDATE usage_records SET invoice_id = 'inv_other'",
        "DELETE FROM usage_records",
        "TRUNCATE usage_records",
        "TRUNCATE invoices CASCADE",
    ],
)
def test_written_invoices_cannot_be_changed(stage, sql):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    with pytest.raises(sa.exc.IntegrityError, match="refused"):
        stage.change(sql)


def test_a_final_invoice_accepts_no_further_lines_or_usage(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant))
    (closed,) = stage.close()
    with pytest.raises(sa.exc.IntegrityError, match="its lines"):
        stage.change(
            "INSERT INTO invoice_lines SELECT 'il_x', invoice_id, 99, kind, base_model, adapter_id, price_version_id,"
            " quantity, unit_price_nanos, amount_nanos, amount_cents, request_count"
            " FROM invoice_lines WHERE position = 1"
        )
    stage.bill(stage.event(tenant))
    with pytest.raises(sa.exc.IntegrityError, match="is final"):
        stage.change("UPDATE usage_records SET invoice_id = :i WHERE invoice_id IS NULL", i=closed.id)


def test_two_concurrent_closes_bill_everything_once(stage):
    tenants = [stage.tenant() for _ in range(5)]
    stage.bill(*(stage.event(tenant) for tenant in tenants for _ in range(20)))
    together = threading.Barrier(4)
    closed, failures = [], []

    def close() -> None:
        together.wait()
        try:
            closed.extend(stage.close())
        except Exception as failure:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(failure)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(invoice.tenant_id for invoice in closed) == sorted(tenants)
    assert {invoice.number for invoice in closed} == {f"TNR-{number:06d}" for number in range(1, 6)}


def test_a_close_that_waits_too_long_for_another_says_so(stage):
    with unit_of_work(stage.engine) as first:
        invoicing.close_period(first)
        with unit_of_work(stage.engine) as second:
            second.connection().exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(Unavailable, match="try again"):
                invoicing.close_period(second)
            second.rollback()


def test_usage_that_commits_while_a_period_closes_is_on_the_next_invoice(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant))
    with unit_of_work(stage.engine) as session:
        (first,) = invoicing.close_period(session)
        stage.bill(stage.event(tenant, settled_at_ms=int(first.period_start.timestamp() * 1000), output_tokens=9))
    (second,) = stage.close()
    assert [line.quantity for line in stage.invoice(second.id).lines if line.kind == "output_tokens"] == [9]
    assert stage.reconcile().unbilled_tokens == 0


def test_a_close_that_is_rolled_back_leaves_no_trace(stage):
    stage.bill(stage.event(stage.tenant()))
    with unit_of_work(stage.engine) as session:
        assert len(invoicing.close_period(session)) == 1
        session.rollback()
    (closed,) = stage.close()
    assert closed.number == "TNR-000001"


def test_a_tenant_sees_its_own_invoices_only(stage):
    one, other = stage.tenant(), stage.tenant()
    for _ in range(3):
        stage.bill(stage.event(one), stage.event(other))
        stage.close()
    with unit_of_work(stage.engine) as session:
        mine = invoice_queries.list_invoices(session, tenant_id=one, limit=10)
        assert [invoice.tenant_id for invoice in mine] == [one] * 3
        assert [invoice.period_end for invoice in mine] == sorted((i.period_end for i in mine), reverse=True)
        everyones = invoice_queries.list_invoices(session, tenant_id=None, limit=10)
        assert len(everyones) == 6
        paged = invoice_queries.list_invoices(session, tenant_id=None, limit=4)
        paged += invoice_queries.list_invoices(session, tenant_id=None, limit=4, after=paged[-1].id)
        assert paged == everyones
        assert invoice_queries.get_invoice(session, invoice_id=mine[0].id, tenant_id=other) is None
        assert invoice_queries.get_invoice(session, invoice_id="inv_absent", tenant_id=None) is None
