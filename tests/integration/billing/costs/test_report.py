"""Fitted functions, margins, break-even and the FOCUS file, over stored hours."""

import csv
import io
import json
from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from billing.costs import cost_functions, focus, price_book, report
from billing.costs.break_even import DatedOutsidePrice
from billing.costs.due_hours import UnratedReplicas
from billing.costs.hours import allocate_due
from billing.costs.rates import MS_PER_HOUR
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest
from tests.integration.billing.costs.conftest import BASE

WEIGHTS = {"fixed_ps": 5_000_000_000, "prefill_token_ps": 100_000_000, "decode_token_ps": 2_000_000_000}


def busy_windows(costs, count: int) -> list:
    """Windows whose steps took 5 ms each, 0.1 ms a prompt token and 2 ms a decoded one."""
    found = []
    for number in range(count):
        steps, prefill, decode = 50 + number % 7 * 10, number % 11 * 300, number % 13 * 100
        found.append(
            costs.window(
                10 * number, 10 * number + 10, busy_ms=min(10_000, 5 * steps + prefill // 10 + 2 * decode),
                steps=steps, prefill_tokens=prefill, decode_tokens=decode, sequence_steps=steps + decode,
                final=number == count - 1,
            )
        )  # fmt: skip
    return found


def unfittable_windows(costs) -> list:
    """Half of the steps take ten times as long as the others, whatever they do: no function can say that."""
    return [
        costs.window(
            10 * number, 10 * number + 10, busy_ms=100 if number % 2 else 1_000, steps=20, prefill_tokens=1_000,
            sequence_steps=20, final=number == 59,
        )
        for number in range(60)
    ]  # fmt: skip


def fitted(costs):
    with unit_of_work(costs.engine) as session:
        (kind,) = cost_functions.kinds(session)
        return cost_functions.fit_kind(session, kind, windows_max=1_000)


def test_a_fit_is_stored_with_its_error_and_is_in_force_from_then_on(costs):
    costs.rate()
    costs.store(*busy_windows(costs, 100))
    made = fitted(costs)
    for name, weight in WEIGHTS.items():
        assert getattr(made.weights, name) == pytest.approx(weight, rel=0.01)
    assert (made.quality.held_out, made.quality.flags) == (20, ())
    assert (made.measured_from_ms, made.measured_to_ms) == (costs.hour_ms, costs.hour_ms + 1_000_000)
    with unit_of_work(costs.engine) as session:
        assert cost_functions.in_force(session, made.kind) == made
        assert cost_functions.list_functions(session, limit=5) == [made]
    allocate_due(costs.engine, costs.settings)
    (hour,) = costs.stage.rows("SELECT cost_function_id, ratio_ppm FROM cost_hours")
    assert hour["cost_function_id"] == made.id
    assert hour["ratio_ppm"] == pytest.approx(1_000_000, rel=0.01)


def test_hours_that_a_flagged_cost_function_shared_out_are_counted(costs):
    costs.rate()
    costs.store(*unfittable_windows(costs))
    made = fitted(costs)
    assert made.quality.flags
    allocate_due(costs.engine, costs.settings)
    costs.stage.force("UPDATE cost_hours SET ratio_ppm = 1000000")
    (model,) = reported(costs).models
    assert (model.unfitted_hours, model.flagged_hours) == (0, 1)


@pytest.fixture
def used(costs):
    """An hour in which a and b used the replica alike for 4 s, and it was idle for 16."""
    costs.rate()
    a, b = costs.tenants(2)
    for tenant in (a, b):
        costs.use(tenant, ended_s=5, lasted_s=2, input_tokens=1_001, output_tokens=1)
    work = {"steps": 2, "prefill_tokens": 2_002, "sequence_steps": 2}
    costs.store(costs.window(0, 20, pool="chat", busy_ms=4_000, final=True, **work))
    allocate_due(costs.engine, costs.settings)
    return a, b


def reported(costs, **changes):
    values = {"start": costs.at(0), "end": costs.at(1), "group_by": "tenant", "settings": costs.settings} | changes
    with unit_of_work(costs.engine) as session:
        return report.report(session, **values)


def test_margins_show_direct_cost_and_the_idle_cost_only_in_the_absorbed_column(costs, used):
    found = reported(costs)
    assert [row.key for row in found.rows] == list(used)
    for row in found.rows:
        assert row.revenue_nanos == 1_001 * 150 + 600
        assert (row.cost_nanos, row.absorbed_cost_nanos) == (2_000_000, 10_000_000)
        assert row.margin_nanos == row.revenue_nanos - 2_000_000
    assert found.platform == {"idle": 16_000_000}
    assert found.total_nanos == sum(row.cost_nanos for row in found.rows) + 16_000_000
    assert found.total_nanos == sum(row.absorbed_cost_nanos for row in found.rows)
    assert found.allocated_until == costs.at(1)


@pytest.mark.scenario(181)
def test_the_models_break_even_is_its_rate_over_its_tokens(costs, used):
    (model,) = reported(costs).models
    assert (model.base_model, model.tokens, model.total_nanos) == (BASE, 2_004, 20_000_000)
    assert (model.paid_ms, model.busy_ms, model.utilisation_ppm) == (20_000, 4_000, 200_000)
    assert model.break_even_observed_nanos == round(20_000_000 * 1_000_000 / 2_004)
    assert model.break_even_full_use_nanos == round(4_000_000 * 1_000_000 / 2_004)


def test_costs_and_what_stands_beside_them_are_of_the_same_hours(costs, used):
    """An hour that is not shared out adds no tokens and no revenue; computed as it is now, it adds both."""
    (before,), earned = reported(costs).models, reported(costs).revenue_nanos
    for tenant in used:
        costs.use(tenant, ended_s=3_605, lasted_s=2, input_tokens=1_001, output_tokens=1)
    costs.store(costs.window(3_600, 3_620, busy_ms=4_000, final=True, steps=2, prefill_tokens=2_002, sequence_steps=2))
    found = reported(costs, end=costs.at(2))
    assert (found.models, found.revenue_nanos, found.revenue_until) == ((before,), earned, costs.at(1))
    both = reported(costs, end=costs.at(2), include_open_hours=True)
    assert (both.revenue_nanos, both.revenue_until) == (2 * earned, costs.at(2))
    assert (both.models[0].tokens, both.models[0].total_nanos) == (2 * before.tokens, 2 * before.total_nanos)
    assert both.models[0].break_even_observed_nanos == before.break_even_observed_nanos
    allocate_due(costs.engine, costs.settings)
    assert reported(costs, end=costs.at(2)) == msgspec.structs.replace(both, allocated_until=costs.at(2))


def test_tokens_of_replicas_without_a_rate_are_in_no_break_even_and_they_are_named(costs, used):
    (before,) = reported(costs).models
    costs.store(
        costs.window(0, 20, replica_id="rep_2", boot_id="boot_2", rank_max=64, pool="large", busy_ms=4_000, final=True)
    )
    costs.use(used[0], ended_s=5, lasted_s=2, input_tokens=9_000, output_tokens=1, replica_id="rep_2")
    found = reported(costs)
    assert found.models == (before,)
    assert found.unrated == (UnratedReplicas(base_model=BASE, rank_max=64, pool="large"),)
    assert {row.margin_nanos for row in found.rows} == {row.margin_ppm for row in found.rows} == {None}


@pytest.mark.scenario(183)
def test_the_saving_says_when_there_is_no_price_to_compare_with(costs, used):
    assert reported(costs).models[0].saving.status == "missing"
    price = DatedOutsidePrice(
        base_model=BASE, provider="elsewhere", as_of=(costs.at(0) - timedelta(days=1)).date(), currency="usd",
        input_nanos_per_mtok=30_000_000_000_000, output_nanos_per_mtok=0, source="their price page",
    )  # fmt: skip
    with unit_of_work(costs.engine) as session:
        price_book.add_outside_price(session, price)
    (model,) = reported(costs).models
    assert model.saving.outside_nanos == 2_002 * 30_000_000
    assert model.saving.reaches_goal
    with pytest.raises(Conflict), unit_of_work(costs.engine) as session:
        price_book.add_outside_price(session, price)


@pytest.mark.parametrize(
    ("start", "end", "param"),
    [
        (timedelta(minutes=1), timedelta(hours=1), "start"),
        (timedelta(hours=1), timedelta(), "end"),
        (timedelta(days=-401), timedelta(), "start"),
    ],
)
def test_a_period_that_is_not_of_whole_hours_is_refused(costs, start, end, param):
    with pytest.raises(InvalidRequest) as refused:
        reported(costs, start=costs.at(0) + start, end=costs.at(0) + end)
    assert refused.value.param == param


def test_a_rate_cannot_change_what_is_shared_out(costs, used):
    with pytest.raises(Conflict) as refused:
        costs.rate(1, from_ms=costs.hour_ms + 60_000)
    assert refused.value.code == "rate_in_allocated_time"
    costs.rate(1, from_ms=costs.hour_ms + MS_PER_HOUR)
    with pytest.raises(Conflict) as refused:
        costs.rate(1, from_ms=costs.hour_ms + MS_PER_HOUR)
    assert refused.value.code == "rate_exists"


def test_a_rate_of_a_group_can_begin_in_time_in_which_only_pools_with_rates_are_shared_out(costs):
    """Otherwise the group's other replicas could never get a rate for that time."""
    costs.rate(1, pool="fast")
    costs.store(costs.window(0, 10, pool="fast", final=True))
    costs.store(costs.window(0, 10, replica_id="rep_2", boot_id="boot_2", pool="slow", final=True))
    assert allocate_due(costs.engine, costs.settings).without_rate == {"rep_2"}
    with pytest.raises(Conflict) as refused:
        costs.rate(2, pool="fast", from_ms=costs.hour_ms)
    assert refused.value.code == "rate_in_allocated_time"
    costs.rate(from_ms=costs.hour_ms)
    assert allocate_due(costs.engine, costs.settings).hours == 1
    for pool in ("", "slow"):
        with pytest.raises(Conflict) as refused:
            costs.rate(2, pool=pool, from_ms=costs.hour_ms + 1)
        assert refused.value.code == "rate_in_allocated_time"


def test_the_focus_file_adds_up_and_names_its_method(costs, used):
    with unit_of_work(costs.engine) as session:
        text = "".join(
            focus.focus_csv(
                session, start_ms=costs.hour_ms, end_ms=costs.hour_ms + MS_PER_HOUR, issuer="Tenora", names={}
            )
        )
    lines = list(csv.DictReader(io.StringIO(text)))
    assert tuple(lines[0]) == focus.COLUMNS
    assert sum(int(line["BilledCost"].replace(".", "")) for line in lines) == 20_000_000
    assert [line["AllocatedResourceId"] for line in lines] == ["", *used]
    assert [json.loads(line["AllocatedTags"])["tenora/tenant"] for line in lines[1:]] == list(used)
    ratios = [json.loads(line["AllocatedMethodDetails"], parse_float=Decimal)["Elements"][0] for line in lines]
    assert sum(each["AllocatedRatio"] for each in ratios) == 1
    assert sum(Decimal(line["PricingQuantity"]) for line in lines) == Decimal("0.005555555")
    assert {line["ResourceId"] for line in lines} == {"rep_1"}
    assert {line["x_CostKind"] for line in lines} == {"idle", "requests"}
    assert {line["x_Pool"] for line in lines} == {"chat"}
    assert {line["AllocatedMethodId"] for line in lines} == {focus.METHOD}
    assert lines[0]["ChargePeriodStart"] == f"{costs.at(0):%Y-%m-%dT%H:00:00Z}"
