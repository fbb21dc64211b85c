"""Alerts on spending limits and commitments."""

import msgspec
import pytest

from billing.limits import spend_limits
from billing.limits.limit_alerts import LimitAlerts
from billing.prices.card import PriceCard
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
        "SELECT event_type, data FROM notifications WHERE tenant_id = :t ORDER BY created_at", t=tenant_id
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
    wallet.spend(tenant, 0.6)
    alerts.run_once()
    assert [percent for _, percent in written(stage, tenant)] == [50, 50, 80, 100]


def test_the_plans_limit_of_a_month_and_a_commitment_are_alerted_too(stage, wallet, alerts):
    card = msgspec.structs.replace(PriceCard.of_all_models(PRICES), commitment_nanos=12 * DOLLAR)
    tenant = stage.tenant(card=card)
    limits = msgspec.structs.replace(AMPLE, spend_nanos_per_month=6 * DOLLAR)
    grant = TenantGrant(tenant_id=tenant, status="active", limits=limits, prices=PRICES)
    stage.redis.hset(redis_keys.snapshot("tenants"), tenant, msgspec.json.encode(grant))
    wallet.spend(tenant, 6)
    alerts.run_once()
    assert written(stage, tenant) == [
        ("spend.threshold_reached", 50), ("spend.threshold_reached", 80), ("spend.threshold_reached", 100),
        ("commitment.threshold_reached", 50),
    ]  # fmt: skip


def test_a_tenant_is_looked_at_once_in_an_interval(stage, wallet):
    tenant = stage.tenant()
    limit(stage, tenant, 12)
    slow = LimitAlerts(stage.engine, stage.redis, stage.meter.watch(), every_ms=3_600_000)
    wallet.spend(tenant, 0.6)
    slow.run_once()
    wallet.spend(tenant, 12)
    slow.run_once()
    assert written(stage, tenant) == []
