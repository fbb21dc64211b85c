"""Each hour is metered once, in order, whatever is killed, and ends up on one invoice."""

from datetime import timedelta

import msgspec
import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing.invoicing.closing import close_tenant
from billing.prices import price_book
from billing.resources import metering
from billing.subscriptions import assignments
from core.db import unit_of_work
from core.ids import new_id
from tests.integration.billing.resources.conftest import FREE, HOUR, PRICED

GB = 1_000_000_000
GB_HOUR = GB * 3_600
MINUTE = timedelta(minutes=1)


def lines_of(resources, tenant: str, until=None) -> dict[str, tuple]:
    made = close_tenant(resources.engine, tenant, until or resources.stage.now(), least_cents=0)
    assert made is not None
    return {line.kind: line for line in resources.stage.invoice(made.id).lines}


def test_missed_hours_are_filled_in_order_and_written_once(resources):
    tenant = resources.tenant()
    adapter = resources.adapter(tenant, deleted_at=resources.hour + 2.5 * HOUR)
    resources.revision(tenant, adapter, GB, ready_at=resources.hour + 0.5 * HOUR)
    assert resources.meter() == 3 * 4
    assert resources.units("adapter_storage") == {
        (tenant, resources.hour): GB_HOUR // 2,
        (tenant, resources.hour + HOUR): GB_HOUR,
        (tenant, resources.hour + 2 * HOUR): GB_HOUR // 2,
    }
    written = resources.stage.rows(
        "SELECT xmin::text AS one FROM metered_hours WHERE kind = 'adapter_storage' ORDER BY hour"
    )
    assert len({row["one"] for row in written}) == 5
    assert resources.meter() == 0
    for table in ("resource_hours", "metered_hours"):
        with pytest.raises(sa.exc.DBAPIError, match="refused"):
            resources.stage.change(f"DELETE FROM {table}")
    with pytest.raises(sa.exc.DBAPIError, match="is metered"):
        resources.stage.change(
            "INSERT INTO resource_hours SELECT tenant_id, hour, kind, 'ad_x', 16, base_model, 1, counted_at"
            " FROM resource_hours LIMIT 1"
        )


def test_a_meter_that_never_ran_begins_with_the_newest_ended_hour(resources):
    assert metering.ResourceMeters(resources.engine, resources.settings).run_once() == 3
    assert {row["hour"] for row in resources.stage.rows("SELECT hour FROM metered_hours")} == {resources.border - HOUR}


@pytest.mark.parametrize("statement", ["INSERT INTO resource_hours", "INSERT INTO metered_hours", "commit"])
def test_a_kill_at_any_statement_loses_and_doubles_no_hour(resources, statement):
    tenant = resources.tenant()
    resources.revision(tenant, resources.adapter(tenant), GB, ready_at=resources.hour)
    resources.pin(tenant, "ad_p", resources.hour)
    killed = []

    def kill(*arguments) -> None:
        if len(killed) < 2 and (statement == "commit" or arguments[2].startswith(statement)):
            killed.append(statement)
            raise ConnectionError("killed")

    on = (Session, "before_commit") if statement == "commit" else (resources.engine, "before_cursor_execute")
    resources.begin()
    sa.event.listen(*on, kill)
    try:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                resources.meter()
        assert resources.units("adapter_storage") == {}
        resources.meter()
    finally:
        sa.event.remove(*on, kill)
    hours = {(tenant, resources.hour + number * HOUR) for number in range(4)}
    assert resources.units("adapter_storage") == dict.fromkeys(hours, GB_HOUR)
    assert resources.units("pinned_slots") == dict.fromkeys(hours, 3_600_000)


def test_a_pin_whose_hours_have_no_exact_decimal_is_invoiced(resources):
    """The database refuses a line that costs more than its quantity."""
    tenant = resources.tenant(msgspec.structs.replace(FREE, pinned_slot_hour_nanos=72_000_000))
    resources.pin(tenant, "ad_p", resources.hour)
    resources.pin(tenant, "ad_p", resources.hour + timedelta(milliseconds=1), pinned=False)
    resources.meter()
    line = lines_of(resources, tenant)["pinned_slots"]
    assert (str(line.quantity), line.amount_nanos) == ("2.78E-7", 20)


def test_an_invoice_has_a_line_for_each_resource_and_the_ledger_its_sum(resources):
    tenant = resources.tenant()
    adapter = resources.adapter(tenant)
    resources.revision(tenant, adapter, 500_000_000, ready_at=resources.hour)
    resources.pin(tenant, adapter, resources.hour)
    resources.pin(tenant, adapter, resources.hour + 90 * MINUTE, pinned=False)
    resources.serve(tenant, adapter, "store", at=resources.hour + MINUTE)
    resources.meter()
    lines = lines_of(resources, tenant)
    assert {
        kind: (line.unit, line.quantity, line.amount_nanos) for kind, line in lines.items() if line.amount_nanos
    } == {
        "adapter_storage": ("gb_hour", 2, 200_000),
        "pinned_slots": ("slot_hour", 1.5, 75_000_000),
        "cold_loads": ("load", 1, 200_000),
    }
    assert {lines[kind].adapter_name for kind in ("adapter_storage", "pinned_slots", "cold_loads")} == {"support"}
    assert {lines[kind].rank_class for kind in ("adapter_storage", "pinned_slots")} == {16}
    assert resources.stage.balance("usage_unbilled", tenant) == 0
    # A second close of the same time has nothing left.
    assert close_tenant(resources.engine, tenant, resources.stage.now()) is None


def test_the_runner_posts_new_hours_of_tenants_without_requests(resources):
    tenant = resources.tenant()
    runner = resources.runner()
    runner.run_once()
    resources.revision(tenant, resources.adapter(tenant), GB, ready_at=resources.hour)
    resources.meter()
    runner.run_once()
    assert resources.stage.balance("usage_unbilled", tenant) == 4 * 100_000
    spent = resources.stage.value("SELECT sum(amount_nanos)::bigint FROM usage_months WHERE tenant_id = :t", t=tenant)
    assert spent == 4 * 100_000


def test_an_hour_that_is_metered_after_its_period_was_invoiced_is_on_the_next_invoice_marked_late(resources):
    tenant = resources.tenant()
    resources.revision(tenant, resources.adapter(tenant), GB, ready_at=resources.hour)
    close_tenant(resources.engine, tenant, resources.hour + 1.5 * HOUR, scheduled=True)
    resources.meter()
    made = close_tenant(resources.engine, tenant, resources.stage.now(), least_cents=0)
    in_time, late = resources.stage.invoice(made.id).lines
    assert (in_time.quantity, in_time.late_for) == (3, None), "the hour in which the period ended is in the next one"
    assert (late.quantity, late.late_for) == (1, resources.hour.replace(day=1, hour=0))


def test_the_last_hours_of_a_tenant_that_left_are_billed_until_it_left(resources):
    """They are metered after its final invoice, and are on a supplementary one."""
    tenant = resources.tenant()
    adapter = resources.adapter(tenant)
    resources.revision(tenant, adapter, GB, ready_at=resources.hour)
    resources.pin(tenant, adapter, resources.hour)
    ended_at = resources.hour + 2.5 * HOUR
    resources.stage.change("UPDATE subscriptions SET ended_at = :at WHERE tenant_id = :t", at=ended_at, t=tenant)
    assert close_tenant(resources.engine, tenant, ended_at, scheduled=True) is None, "nothing is metered yet"
    resources.meter()
    resources.runner().run_once()
    made = close_tenant(resources.engine, tenant, resources.stage.now(), least_cents=0)
    assert made.kind == "supplementary"
    lines = resources.stage.invoice(made.id).lines
    assert {
        kind: sum(line.quantity for line in lines if line.kind == kind) for kind in ("adapter_storage", "pinned_slots")
    } == {
        "adapter_storage": 2.5,
        "pinned_slots": 2.5,
    }
    assert sum(line.amount_nanos for line in lines) == 250_000 + 125_000_000
    assert resources.stage.balance("usage_unbilled", tenant) == 0


def test_an_hour_costs_what_was_in_force_at_its_start(resources):
    tenant = resources.tenant()
    dear = new_id("pl")
    with unit_of_work(resources.engine) as session:
        price_book.add_version(
            session, plan_id=dear, card=msgspec.structs.replace(PRICED, adapter_storage_gb_hour_nanos=300_000)
        )
        assignments.assign_plan(session, tenant_id=tenant, plan_id=dear)
    resources.stage.force(
        "UPDATE plan_assignments SET effective_from = :at WHERE tenant_id = :t AND plan_id = :p",
        at=resources.hour + 1.5 * HOUR, t=tenant, p=dear,
    )  # fmt: skip
    resources.revision(tenant, resources.adapter(tenant), GB, ready_at=resources.hour)
    resources.meter()
    made = close_tenant(resources.engine, tenant, resources.stage.now(), least_cents=0)
    lines = resources.stage.invoice(made.id).lines
    assert [(line.quantity, line.unit_price_nanos, line.amount_nanos) for line in lines] == [
        (2, 100_000, 200_000), (2, 300_000, 600_000)
    ]  # fmt: skip


def test_a_revision_of_unknown_size_is_not_charged(resources):
    tenant = resources.tenant()
    resources.revision(tenant, resources.adapter(tenant), None, ready_at=resources.hour)
    resources.meter()
    assert resources.units("adapter_storage") == {}


@pytest.mark.scenario(160)
def test_tokens_are_reconciled_beside_lines_that_are_no_tokens(resources):
    tenant = resources.tenant()
    adapter = resources.adapter(tenant)
    resources.revision(tenant, adapter, GB, ready_at=resources.hour)
    resources.serve(tenant, adapter, "disk", at=resources.hour + MINUTE)
    resources.meter()
    before = resources.stage.reconcile()
    lines_of(resources, tenant)
    found = resources.stage.reconcile()
    assert (found.ledger_tokens, found.invoiced_tokens, found.unbilled_tokens) == (120, 120, 0)
    assert (before.invoiced_tokens, found.ledger_drift_nanos) == (0, 0)
