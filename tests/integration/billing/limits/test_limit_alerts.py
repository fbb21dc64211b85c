"""Alerts on spending limits and commitments."""

from datetime import datetime

import msgspec
import pytest

from billing.limits import limit_alerts, spend_limits
from billing.limits.limit_alerts import LimitAlerts
from billing.prices.card import PriceCard
from billing.usage.metering import ActiveTenants
from core import redis_keys
from core.contracts.grants import TenantGrant
from core.db import unit_of_work
from tests.fixtures.gateway.published import AMPLE
from tests.integration.billing.conftest import PRICES

DOLLAR = 1_000_000_000


@pytest.fixture
def alerts(stage) -> LimitAlerts:
    return LimitAlerts(stage.engine, stage.redis, stage.meter.watch(), every_ms=0)


def written(stage, tenant_id: str) -> list[tuple[str, int]]:
    rows = stage.rows(
        "SELECT event_type, data FROM notifications WHERE tenant_id = :t AND event_type LIKE '%.threshold_reached'"
        " ORDER BY created_at",
        t=tenant_id,
    )
    return [(each["event_type"], each["data"]["percent"]) for each in rows]


def limit(stage, tenant_id: str, dollars: float, scope: str = "tenant", subject_id: str = "") -> None:
    with unit_of_work(stage.engine) as session:
        spend_limits.set_limit(
            session, tenant_id=tenant_id, scope=scope, subject_id=subject_id, window="month",
            amount_nanos=round(dollars * DOLLAR),
        )  # fmt: skip


@pytest.mark.scenario(94)
def test_one_record_that_passes_three_thresholds_raises_three_alerts_in_order_once_each(stage, wallet, alerts):
    tenant = stage.tenant()
    limit(stage, tenant, 12)
    wallet.spend(tenant, 4.8)
    alerts.run_once()
    assert written(stage, tenant) == []
    wallet.spend(tenant, 7.2)
    alerts.run_once()
    reached = [("spend.threshold_reached", percent) for percent in (50, 80, 100)]
    assert written(stage, tenant) == reached
    wallet.spend(tenant, 0.6)
    alerts.run_once()
    other_worker = LimitAlerts(stage.engine, stage.redis, stage.meter.watch(), every_ms=0)
    wallet.spend(tenant, 0.6)
    other_worker.run_once()
    assert written(stage, tenant) == reached


@pytest.mark.scenario(98)
def test_a_limit_that_is_lowered_below_what_is_spent_alerts_again_by_the_new_limit(stage, wallet, alerts):
    tenant = stage.tenant()
    limit(stage, tenant, 12, "key", "key_1")
    wallet.spend(tenant, 6)
    alerts.run_once()
    limit(stage, tenant, 3, "key", "key_1")
    alerts.run_once()  # without further usage
    assert [percent for _, percent in written(stage, tenant)] == [50, 50, 80, 100]


def test_a_raised_limit_sends_no_threshold_that_was_passed_before(stage, wallet, alerts):
    tenant = stage.tenant()
    limit(stage, tenant, 12)
    wallet.spend(tenant, 10.8)
    alerts.run_once()
    limit(stage, tenant, 13.2)
    wallet.spend(tenant, 0.6)
    alerts.run_once()
    assert [percent for _, percent in written(stage, tenant)] == [50, 80]
    wallet.spend(tenant, 1.8)
    alerts.run_once()
    assert [percent for _, percent in written(stage, tenant)] == [50, 80, 100]
    limit(stage, tenant, 18)
    wallet.spend(tenant, 1.2)
    alerts.run_once()
    assert [percent for _, percent in written(stage, tenant)] == [50, 80, 100, 80]


def plan_limit(stage, tenant: str, dollars: int) -> None:
    limits = msgspec.structs.replace(AMPLE, spend_nanos_per_month=dollars * DOLLAR)
    grant = TenantGrant(tenant_id=tenant, status="active", limits=limits, prices=PRICES)
    stage.redis.hset(redis_keys.snapshot("tenants"), tenant, msgspec.json.encode(grant))


def test_a_raised_limit_of_the_plan_does_not_either(stage, wallet, alerts):
    tenant = stage.tenant()
    plan_limit(stage, tenant, 6)
    wallet.spend(tenant, 6)
    alerts.run_once()
    plan_limit(stage, tenant, 12)
    wallet.spend(tenant, 3.6)
    alerts.run_once()
    assert [percent for _, percent in written(stage, tenant)] == [50, 80, 100, 80]


def test_the_plans_limit_of_a_month_and_a_commitment_are_alerted_too(stage, wallet, alerts):
    card = msgspec.structs.replace(PriceCard.of_all_models(PRICES), commitment_nanos=12 * DOLLAR)
    tenant = stage.tenant(card=card)
    plan_limit(stage, tenant, 6)
    wallet.spend(tenant, 6)
    alerts.run_once()
    assert written(stage, tenant) == [
        ("spend.threshold_reached", 50), ("spend.threshold_reached", 80), ("spend.threshold_reached", 100),
        ("commitment.threshold_reached", 50),
    ]  # fmt: skip


def test_a_commitment_of_a_year_counts_what_is_invoiced_already(stage, wallet, alerts):
    committed = msgspec.structs.replace(
        PriceCard.of_all_models(PRICES), commitment_nanos=12 * DOLLAR, commitment_interval="year"
    )
    tenant = stage.tenant(card=committed)
    wallet.spend(tenant, 4.8)
    alerts.run_once()
    assert written(stage, tenant) == []
    stage.close()
    wallet.spend(tenant, 4.8)
    alerts.run_once()
    assert written(stage, tenant) == [("commitment.threshold_reached", 50), ("commitment.threshold_reached", 80)]
    (year,) = {
        (each["data"]["period_start"], each["data"]["period_end"], each["data"]["used_nanos"])
        for each in stage.rows(
            "SELECT data FROM notifications WHERE event_type = 'commitment.threshold_reached' AND tenant_id = :t",
            t=tenant,
        )
    }
    start, end = (datetime.fromisoformat(each) for each in year[:2])
    assert end.year == start.year + 1
    assert year[2] == 9_600_000_000


def test_usage_that_a_killed_worker_recorded_is_alerted_by_the_next_one(stage, wallet):
    tenant = stage.tenant()
    limit(stage, tenant, 12)
    wallet.spend(tenant, 6)
    stage.change("UPDATE spend_limits SET updated_at = updated_at - interval '1 hour'")
    LimitAlerts(stage.engine, stage.redis, ActiveTenants(), every_ms=0).run_once()
    assert written(stage, tenant) == [("spend.threshold_reached", 50)]


def test_the_first_look_at_all_tenants_takes_a_few_at_a_time(stage, wallet, monkeypatch):
    monkeypatch.setattr(limit_alerts, "_ALL_AT_ONCE", 2)
    tenants = [stage.tenant() for _ in range(3)]
    for tenant in tenants:
        limit(stage, tenant, 12)
        wallet.spend(tenant, 6)
    stage.change("UPDATE spend_limits SET updated_at = updated_at - interval '1 hour'")
    started = LimitAlerts(stage.engine, stage.redis, ActiveTenants(), every_ms=0)
    counts = []
    for _ in range(2):
        started.run_once()
        counts.append(sum(len(written(stage, tenant)) for tenant in tenants))
    assert counts == [2, 3]


def test_a_tenant_is_looked_at_once_in_an_interval(stage, wallet):
    tenant = stage.tenant()
    limit(stage, tenant, 12)
    slow = LimitAlerts(stage.engine, stage.redis, stage.meter.watch(), every_ms=3_600_000)
    wallet.spend(tenant, 0.6)
    slow.run_once()
    wallet.spend(tenant, 12)
    slow.run_once()
    assert written(stage, tenant) == []
