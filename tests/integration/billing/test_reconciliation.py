"""Reports and totals: the usage that tenants see, and the agreement of engines, ledger and invoices."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import redis as redis_client

from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.reconciliation import totals
from billing.usage import buckets
from billing.usage.views import Service
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest, Unavailable
from core.periods import EPOCH

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PRICES = Prices(input_nanos=1, cached_input_nanos=1, output_nanos=1, kv_page_second_nanos=1)


CARD = PriceCard.of_all_models(PRICES)


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


@pytest.fixture
def noon(stage) -> datetime:
    """Noon (UTC) of a past day."""
    return stage.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)


def report(stage, tenant, start, end, bucket, group_by=None):
    with unit_of_work(stage.engine) as session:
        return buckets.usage(session, tenant_id=tenant, start=start, end=end, bucket=bucket, group_by=group_by)


def test_usage_is_reported_by_minute_hour_and_day(stage, noon):
    tenant = stage.tenant()
    for seconds in (-1, 0, 59, 60, 3_600):
        stage.bill(stage.event(tenant, settled_at_ms=ms(noon) + seconds * 1000))
    start, end = noon - timedelta(hours=1), noon + timedelta(hours=2)
    minute = timedelta(minutes=1)
    assert [(bucket.start, bucket.requests) for bucket in report(stage, tenant, start, end, "1m")] == [
        (noon - minute, 1),
        (noon, 2),
        (noon + minute, 1),
        (noon + 60 * minute, 1),
    ]
    assert [bucket.requests for bucket in report(stage, tenant, start, end, "1h")] == [1, 3, 1]
    (day,) = report(stage, tenant, noon - timedelta(days=1), noon + timedelta(days=1), "1d")
    assert day.start == noon.replace(hour=0)
    assert (day.input_tokens, day.cached_tokens, day.output_tokens, day.kv_page_ms) == (500, 160, 100, 5 * 1_601)
    assert day.amount_nanos == stage.value("SELECT sum(amount_nanos) FROM usage_records")


def test_a_revisions_report_shows_how_it_served(stage, noon):
    tenant = stage.tenant()

    def served(revision: str, **more):
        at = ms(noon)
        return stage.event(tenant, settled_at_ms=at, adapter_id="ad_1", revision_id=revision, **more)

    stage.bill(
        *(served("rev_a", first_token_ms=10 * n, duration_ms=100 * n, adapter_tier="slot") for n in range(1, 101)),
        served("rev_a", outcome="client_gone", first_token_ms=None, duration_ms=99_999),
        served("rev_b", first_token_ms=None, duration_ms=70, adapter_tier="store", adapter_load_ms=500, stall_ms=12),
        served("rev_b", outcome="replica_gone", duration_ms=3, stall_ms=1),
        served("rev_c", outcome="timeout"),
        stage.event(stage.tenant(), settled_at_ms=ms(noon), adapter_id="ad_1", revision_id="rev_a", duration_ms=1),
    )
    rows = report(stage, tenant, noon, noon + timedelta(hours=1), "1h", "revision")
    judged = {row.revision_id: row.service for row in rows}
    assert judged == {
        "rev_a": Service(
            first_token_ms_p50=500, first_token_ms_p99=990, duration_ms_p50=5_000, duration_ms_p99=9_900, stall_ms=0,
            outcomes={"done": 100, "client_gone": 1}, tiers={"slot": 100}, goal_requests=100, goal_met_requests=49,
        ),
        "rev_b": Service(
            first_token_ms_p50=None, first_token_ms_p99=None, duration_ms_p50=70, duration_ms_p99=70, stall_ms=13,
            outcomes={"done": 1, "replica_gone": 1}, tiers={"store": 1}, goal_requests=2, goal_met_requests=1,
        ),
        "rev_c": Service(
            first_token_ms_p50=None, first_token_ms_p99=None, duration_ms_p50=None, duration_ms_p99=None, stall_ms=0,
            outcomes={"timeout": 1}, tiers={}, goal_requests=1, goal_met_requests=0,
        ),
    }  # fmt: skip
    assert {row.revision_id: row.requests for row in rows} == {"rev_a": 101, "rev_b": 2, "rev_c": 1}
    assert all(row.adapter_id == "ad_1" for row in rows)
    (plain,) = report(stage, tenant, noon, noon + timedelta(hours=1), "1h")
    assert (plain.service, plain.requests) == (None, 104)


@pytest.mark.parametrize(
    ("length", "bucket", "param"),
    [(timedelta(days=2), "1m", "bucket"), (timedelta(0), "1h", "end"), (timedelta(hours=-1), "1h", "end")],
)
def test_a_report_that_is_too_long_or_empty_names_the_fix(stage, length, bucket, param):
    with pytest.raises(InvalidRequest) as refusal:
        report(stage, "tn_any", NOON, NOON + length, bucket)
    assert refusal.value.param == param


def test_engines_ledger_and_invoices_count_the_same_tokens(stage):
    one, other = stage.tenant(), stage.tenant()
    counted: defaultdict[tuple[str, str], Counter] = defaultdict(Counter)
    for number in range(40):
        event = stage.event(one if number % 3 else other, input_tokens=40 + number, output_tokens=number)
        stage.bill(event)
        counted[event.tenant_id, f"boot_{1 + number % 2}"].update(
            requests=1, prompt_tokens=event.input_tokens, cached_tokens=40, output_tokens=event.output_tokens
        )
        if number == 20:
            stage.close()
    for (tenant, boot), counts in counted.items():
        stage.count_on_engine(tenant, boot=boot, **counts)
    found = stage.reconcile()
    assert found.engine_tokens == found.ledger_tokens == sum(40 + 2 * number for number in range(40))
    assert found.invoiced_tokens == sum(40 + 2 * number for number in range(21))
    assert found.unbilled_tokens == found.ledger_tokens - found.invoiced_tokens
    assert (found.drift_tokens, found.ledger_drift_nanos, found.unprocessed_events, found.dead_letters) == (0, 0, 0, 0)
    assert found.excess_cached_tokens == 0
    assert {tenant.tenant_id for tenant in found.per_tenant} == {one, other}
    assert all(tenant.engine_tokens == tenant.ledger_tokens for tenant in found.per_tenant)
    assert sum(tenant.unbilled_tokens for tenant in found.per_tenant) == found.unbilled_tokens
    stage.close()
    assert stage.reconcile().invoiced_tokens == found.ledger_tokens


def test_an_aborted_prefill_is_in_the_ledger_and_on_the_invoice_and_in_no_engines_counters(stage):
    tenant = stage.tenant()
    stage.bill(
        stage.event(tenant, outcome="client_gone", output_tokens=0, cached_tokens=0, aborted_prefill_tokens=100),
        stage.event(tenant, outcome="client_gone", input_tokens=150, aborted_prefill_tokens=50),
        stage.event(tenant),
    )
    stage.count_on_engine(tenant, prompt_tokens=200, output_tokens=40)
    stage.close()
    found = stage.reconcile()
    assert (found.engine_tokens, found.aborted_prefill_tokens, found.ledger_tokens) == (240, 150, 390)
    assert (found.drift_tokens, found.ledger_drift_nanos, found.invoiced_tokens) == (0, 0, 390)
    assert [one.aborted_prefill_tokens for one in found.per_tenant] == [150]
    (bucket,) = report(stage, tenant, stage.now() - timedelta(hours=1), stage.now() + timedelta(hours=1), "1d")
    assert (bucket.input_tokens, bucket.aborted_prefill_tokens) == (350, 150)


def test_page_time_is_compared_with_what_engines_measured(stage):
    tenant = stage.tenant()
    stage.bill(
        stage.event(tenant, kv_page_ms=1_000, kv_measured=True),
        stage.event(tenant, kv_page_ms=900, kv_measured=True, outcome="client_gone"),
        stage.event(tenant, kv_page_ms=333),
    )
    stage.count_on_engine(tenant, prompt_tokens=300, output_tokens=60, kv_page_ms=2_000)
    found = stage.reconcile()
    assert (found.engine_kv_page_ms, found.kv_measured_page_ms, found.kv_unmeasured_page_ms) == (2_000, 1_900, 333)
    assert found.unreported_kv_page_ms == 100
    assert [(one.kv_measured_page_ms, one.kv_unmeasured_page_ms) for one in found.per_tenant] == [(1_900, 333)]
    assert sorted(row["kv_measured"] for row in stage.rows("SELECT kv_measured FROM usage_records")) == [
        False, True, True,
    ]  # fmt: skip


def test_an_audit_without_redis_fails_instead_of_guessing(stage):
    with (
        redis_client.Redis(port=1, socket_connect_timeout=1) as unreachable,
        unit_of_work(stage.engine) as session,
        pytest.raises(Unavailable, match="Redis"),
    ):
        totals.reconcile(session, unreachable)


def test_prices_change_only_for_the_future(stage):
    with unit_of_work(stage.engine) as session:
        first = price_book.add_version(session, plan_id="pl_1", card=CARD)
        assert first.effective_from == EPOCH
        second = price_book.add_version(session, plan_id="pl_1", card=CARD)
        assert second.effective_from > first.created_at
        later = stage.now() + timedelta(days=1)
        third = price_book.add_version(session, plan_id="pl_1", card=CARD, effective_from=later)
        assert [version.id for version in price_book.list_versions(session, plan_id="pl_1")] == [
            third.id,
            second.id,
            first.id,
        ]
        with pytest.raises(Conflict, match="already has prices"):
            price_book.add_version(session, plan_id="pl_1", card=CARD, effective_from=later)
        with pytest.raises(InvalidRequest, match="past"):
            price_book.add_version(session, plan_id="pl_1", card=CARD, effective_from=NOON - timedelta(days=9))
        with pytest.raises(InvalidRequest, match="output_nanos") as refusal:
            price_book.add_version(session, plan_id="pl_1", card=msgspec.structs.replace(CARD, output_nanos=-1))
        assert refusal.value.param == "prices.output_nanos"
