"""Windows from Redis to rows of hours: stored once, shared out once, adding up to rate × time."""

from functools import partial

import msgspec
import pytest
import sqlalchemy as sa

from billing.costs import hours
from billing.costs.allocation import OwnerWork
from billing.costs.hours import CostAttribution, allocate_due
from billing.costs.owners import work_of_owners
from billing.costs.rates import MS_PER_HOUR
from billing.worker import connect_redis
from core import redis_acl, redis_keys
from core.contracts.costs import WINDOW_MS_MAX
from core.db import unit_of_work
from tests.fixtures.least_privilege import as_user
from tests.fixtures.together import together
from tests.integration.billing.costs.conftest import NANOS_PER_HOUR


def test_windows_are_stored_once_however_often_they_arrive(costs):
    first, second = costs.window(0, 10), costs.window(10, 20)
    assert costs.store(first, second) == 2
    assert costs.store(first, second) == 0
    assert costs.redis.xlen(redis_keys.COST_WINDOWS) == 0
    assert costs.stage.value("SELECT count(*) FROM replica_cost_windows") == 2


def test_impossible_windows_are_refused_and_stop_no_other(costs):
    changes = (
        {"end_ms": 4_000_000_000_000},
        {"busy_ms": -1},
        {"start_ms": 2_000, "end_ms": 2_000},
        {"state": "asleep"},
        {"state": "failed"},
        {"start_ms": 1, "end_ms": WINDOW_MS_MAX + 2},
    )
    bad = [msgspec.json.encode(msgspec.to_builtins(costs.window(0, 10)) | each) for each in changes]
    assert costs.store(b"not json", b'{"replica_id": "rep_1"}', *bad, costs.window(10, 20)) == 1
    assert costs.redis.xlen(redis_keys.COST_WINDOWS) == 0


@pytest.mark.scenario(174)
def test_an_hour_is_shared_out_once_and_adds_up_to_rate_times_time(costs):
    costs.rate()
    a, b = costs.tenants(2)
    costs.use(a, ended_s=120, input_tokens=2_001, output_tokens=1)
    costs.use(b, ended_s=130, input_tokens=1_001, output_tokens=501, first_token_s=10)
    work = {"steps": 502, "prefill_tokens": 3_002, "decode_tokens": 500, "sequence_steps": 502}
    costs.store(
        costs.window(0, 45, "starting"),
        costs.window(45, 105),
        costs.window(105, 150, busy_ms=4_000, **work),
        costs.window(150, 160, "draining", busy_ms=500),
    )
    assert allocate_due(costs.engine, costs.settings).hours == 1
    found = costs.rows()
    # Before a fit, a prompt token weighs 1 and a decoded one 2: a did 2,001 of 4,002 parts, b the rest.
    assert found == {
        a: 2_250_000,
        b: 2_250_000,
        "starting": 45_000_000,
        "idle": 101_000_000,
        "draining": 9_500_000,
        "lost": 60_000_000,
    }
    assert sum(found.values()) == (160 + 60) * 1_000_000
    assert allocate_due(costs.engine, costs.settings).hours == 0


def test_prompts_of_estimates_and_answers_lost_with_their_gateway_are_unclaimed(costs):
    """An estimate bills its whole prompt as cached, so that the engine computed it is explained by no usage."""
    costs.rate()
    (a,) = costs.tenants(1)
    costs.use(
        a, ended_s=120, input_tokens=1_000, cached_tokens=1_000, output_tokens=101, outcome="gateway_gone",
        estimated=True,
    )  # fmt: skip
    estimate, lost = {"prefill": 1_000, "decode": 100}, {"prefill": 500, "decode": 50}
    work = {f"{kind}_tokens": estimate[kind] + lost[kind] for kind in estimate}
    costs.store(costs.window(100, 130, busy_ms=1_800, steps=152, sequence_steps=152, **work, final=True))
    allocate_due(costs.engine, costs.settings)
    # Before a fit, a prompt token weighs 1 and a decoded one 2.
    assert costs.rows() == {a: 200_000, "unclaimed": 1_600_000, "idle": 28_200_000}


def test_a_request_across_the_border_of_two_hours_is_in_both_and_nothing_is_counted_twice(costs):
    costs.rate()
    (a,) = costs.tenants(1)
    # A prompt of 1,000 computed 10 s before the border, then 200 tokens until 10 s after it.
    costs.use(a, ended_s=3_610, lasted_s=20, input_tokens=1_000, output_tokens=201)
    costs.store(
        costs.window(3_590, 3_600, busy_ms=10_000, steps=101, prefill_tokens=1_000, decode_tokens=100,
                     context_tokens=105_050, sequence_steps=101),
        costs.window(3_600, 3_610, busy_ms=10_000, steps=100, decode_tokens=100, context_tokens=115_050,
                     sequence_steps=100, final=True),
    )  # fmt: skip
    with unit_of_work(costs.engine) as session:
        found = [
            work_of_owners(
                session, start_ms=costs.hour_ms + n * MS_PER_HOUR, end_ms=costs.hour_ms + (n + 1) * MS_PER_HOUR,
                request_hours_max=2,
            )["rep_1"][0]
            for n in (0, 1)
        ]  # fmt: skip
    assert [(each.prefill_tokens, each.decode_tokens, each.sequence_steps) for each in found] == [
        (1_000, 100, 101),
        (0, 100, 100),
    ]
    assert [each.context_tokens for each in found] == [105_050, 115_050]
    assert allocate_due(costs.engine, costs.settings).hours == 2
    assert costs.rows() == {a: 10_000_000}
    assert costs.rows(costs.hour_ms + MS_PER_HOUR) == {a: 10_000_000}


def test_replicas_without_a_rate_stop_no_other_pool(costs, monkeypatch):
    """Also when they have more hours that are due than one look reads."""
    costs.rate()
    old = [-hours * 3_600 for hours in range(1, 4)]
    costs.store(
        *(
            costs.window(start, start + 10, replica_id=f"rep_old_{n}", boot_id=f"boot_old_{n}", base_model="unrated")
            for start in old
            for n in range(30)
        )
    )
    costs.store(costs.window(0, 10, final=True))
    costs.store(costs.window(3_600, 3_610, final=True))
    monkeypatch.setattr(hours, "_limit", lambda _settings: 60)
    with unit_of_work(costs.engine) as session:
        found = hours.preview(session, costs.settings, hours_max=30)
    assert [hour.hour_ms for hour in found.hours] == [costs.hour_ms, costs.hour_ms + MS_PER_HOUR]
    run = allocate_due(costs.engine, costs.settings)
    assert (run.hours, len(run.without_rate)) == (2, 30)
    assert costs.rows() == {"idle": 10_000_000}


def test_replicas_of_two_pools_of_one_group_cost_their_pools_rates_and_others_the_groups(costs):
    """The fast pool's first rate begins 20 s into the hour. Rates are of 0.7 and 2.2 nanodollars a millisecond."""
    costs.rate(2_500_001)
    costs.rate(8_000_003, pool="fast", from_ms=costs.hour_ms + 20_000)
    costs.rate(3_600_000, pool="small")
    (a,) = costs.tenants(1)
    costs.use(a, ended_s=50, replica_id="rep_fast", input_tokens=1_001, output_tokens=1)
    work = {"busy_ms": 5_000, "steps": 1, "prefill_tokens": 1_001, "sequence_steps": 1}
    for pool in ("fast", "small", ""):
        name = {"replica_id": f"rep_{pool}", "boot_id": f"boot_{pool}"}
        costs.store(costs.window(0, 60, pool=pool, final=True, **name, **(work if pool == "fast" else {})))
    assert allocate_due(costs.engine, costs.settings).hours == 3
    stored = costs.stage.rows("SELECT pool, charge, carry, total_nanos FROM cost_hours ORDER BY pool")
    fast = 20_000 * 2_500_001 + 40_000 * 8_000_003
    assert [(row["pool"], int(row["charge"])) for row in stored] == [
        ("", 60_000 * 2_500_001),
        ("fast", fast),
        ("small", 60_000 * 3_600_000),
    ]
    assert all(row["total_nanos"] * MS_PER_HOUR + row["carry"] == row["charge"] for row in stored)
    found = costs.rows()
    assert sum(found.values()) == sum(row["total_nanos"] for row in stored)
    assert found[a] == fast * 5_000 // 60_000 // MS_PER_HOUR


def test_a_replica_waits_only_while_neither_its_pool_nor_its_group_has_a_rate(costs):
    costs.rate(pool="fast")
    costs.store(costs.window(0, 10, pool="fast", final=True))
    other = costs.window(0, 10, replica_id="rep_slow", boot_id="boot_slow", pool="slow", final=True)
    costs.store(other)
    run = allocate_due(costs.engine, costs.settings)
    assert (run.hours, run.without_rate) == (1, {"rep_slow"})
    costs.rate(2 * NANOS_PER_HOUR, pool="slow")
    assert allocate_due(costs.engine, costs.settings).hours == 1
    assert costs.rows() == {"idle": 10_000_000 + 20_000_000}


def test_a_preview_says_where_it_ends(costs):
    costs.rate()
    for hour in range(2):
        costs.store(costs.window(3_600 * hour, 3_600 * hour + 10, final=True))
    with unit_of_work(costs.engine) as session:
        found = hours.preview(session, costs.settings, hours_max=1)
        later = hours.preview(session, costs.settings, hours_max=1, start_ms=costs.hour_ms + MS_PER_HOUR)
    assert ([hour.hour_ms for hour in found.hours], found.until_ms) == ([costs.hour_ms], costs.hour_ms + MS_PER_HOUR)
    assert ([hour.hour_ms for hour in later.hours], later.until_ms) == ([costs.hour_ms + MS_PER_HOUR], None)


def test_what_is_below_one_nanodollar_is_carried_to_the_next_hour(costs):
    costs.rate(1_234_567)  # 0.34 nanodollars a millisecond
    costs.store(
        costs.window(0, 1, end_ms=costs.hour_ms + 10),
        costs.window(3_600, 3_601, end_ms=costs.hour_ms + 3_600_010, final=True),
    )
    settings = costs.settings.model_copy(update={"cost_lost_after_s": 0})
    assert allocate_due(costs.engine, settings).hours == 2
    stored = costs.stage.rows("SELECT charge, carry_in, carry, total_nanos FROM cost_hours ORDER BY hour_ms")
    assert [row["total_nanos"] for row in stored] == [3, 3]
    assert stored[1]["carry_in"] == stored[0]["carry"] > 0
    assert sum(row["total_nanos"] for row in stored) == 2 * 10 * 1_234_567 // MS_PER_HOUR


def test_an_hour_that_is_not_over_is_previewed_and_not_stored(costs):
    costs.rate()
    now_s = costs.stage.value("SELECT extract(epoch FROM clock_timestamp())::bigint") - costs.hour_ms // 1_000
    costs.store(costs.window(now_s - 2, now_s - 1, final=True))
    assert allocate_due(costs.engine, costs.settings).hours == 0
    with unit_of_work(costs.engine) as session:
        (found,) = hours.preview(session, costs.settings, hours_max=3).hours
    assert found.allocation.total_nanos == 1_000_000
    assert costs.stage.value("SELECT count(*) FROM cost_rows") == 0


def test_the_database_refuses_to_change_costs(costs):
    costs.rate()
    costs.store(costs.window(0, 10, final=True))
    allocate_due(costs.engine, costs.settings)
    for sql, reason in (
        ("UPDATE cost_rows SET nanos = nanos + 1", "written once"),
        ("DELETE FROM cost_hours", "written once"),
        ("UPDATE replica_cost_windows SET busy_ms = 0", "written once"),
        ("DELETE FROM replica_rates", "written once"),
        (
            "INSERT INTO cost_rows SELECT replica_id, hour_ms, 'tn_x', '', '', 'requests', 1 FROM cost_hours",
            "is not being written",
        ),
        (
            """INSERT INTO cost_hours SELECT 'rep_2', hour_ms, base_model, rank_max, pool, NULL, charge, carry_in,
            carry, total_nanos, paid_ms, busy_ms, NULL, created_at FROM cost_hours""",
            "add up to 0",
        ),
    ):
        with pytest.raises(sa.exc.DBAPIError, match=reason):
            costs.stage.change(sql)


def test_two_workers_share_an_hour_out_once(costs):
    costs.rate()
    costs.store(*(costs.window(10 * n, 10 * n + 10, replica_id=f"rep_{n}", final=True) for n in range(6)))
    stored = together(*[partial(allocate_due, costs.engine, costs.settings)] * 2)
    assert sum(each.hours for each in stored) == 6
    assert costs.rows() == {"idle": 60_000_000}


def test_the_job_of_the_worker_stores_windows_and_shares_hours_out_with_the_workers_rights(
    costs, as_billing, redis_settings
):
    costs.rate()
    costs.publish(costs.window(0, 10, final=True))
    with connect_redis(as_user(redis_settings, redis_acl.BILLING), costs.stage.settings) as redis:
        CostAttribution(as_billing, redis, costs.settings).run_once()
    assert costs.rows() == {"idle": 10_000_000}


def used(costs, *, hours_later: int = 0):
    start_ms = costs.hour_ms + hours_later * MS_PER_HOUR
    with unit_of_work(costs.engine) as session:
        found = work_of_owners(session, start_ms=start_ms, end_ms=start_ms + MS_PER_HOUR, request_hours_max=2)
    return {each.owner.tenant_id: each for each in found.get("rep_1", [])}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(
            {"input_tokens": 10_000, "cached_tokens": 8_000, "output_tokens": 1},
            {"prefill_tokens": 2_000, "sequence_steps": 1},
            marks=pytest.mark.scenario(171),
        ),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 1, "adapter_id": "ad_c", "adapter_tier": "store", "stall_ms": 400},
            {"prefill_tokens": 10, "sequence_steps": 1, "stall_ms": 400},
            marks=pytest.mark.scenario(172),
        ),
        pytest.param(
            {"input_tokens": 30_000, "aborted_prefill_tokens": 30_000, "output_tokens": 0, "outcome": "client_gone"},
            {"aborted_prefill_tokens": 30_000, "sequence_steps": 1},
            marks=pytest.mark.scenario(176),
        ),
        (
            {"input_tokens": 100, "cached_tokens": 60, "aborted_prefill_tokens": 100, "output_tokens": 0},
            {"aborted_prefill_tokens": 40, "sequence_steps": 1},
        ),
        (
            {"input_tokens": 100, "output_tokens": 5, "lasted_s": 0},
            {"prefill_tokens": 100, "decode_tokens": 4, "context_tokens": 410, "sequence_steps": 5},
        ),
    ],
)
def test_usage_says_what_its_engine_computed(costs, usage, expected):
    (a,) = costs.tenants(1)
    costs.use(a, ended_s=100, **usage)
    found = used(costs)[a]
    names = [name for name in OwnerWork.__struct_fields__ if name != "owner"]
    assert {name: getattr(found, name) for name in names if getattr(found, name)} == expected
    assert found.owner.adapter_id == usage.get("adapter_id", "")


def test_usage_of_other_hours_is_not_claimed(costs):
    a, b = costs.tenants(2)
    costs.use(a, ended_s=-1, lasted_s=5)
    costs.use(b, ended_s=3_700, lasted_s=5)
    assert used(costs) == {}
    assert set(used(costs, hours_later=1)) == {b}
