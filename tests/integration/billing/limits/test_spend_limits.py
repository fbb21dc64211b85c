"""What is spent of a tenant's limits, by billing's sums, and what gateways get."""

from datetime import UTC, timedelta

import pytest

from billing.limits import spend_limits, spending
from billing.limits.spend_limits import spent_in
from core import clock
from core.db import unit_of_work
from core.errors import AppError
from core.spend_windows import WindowBounds, window_at

DOLLAR = 1_000_000_000


def put(stage, tenant_id: str, scope: str, window: str, dollars: float, subject_id: str = ""):
    with unit_of_work(stage.engine) as session:
        return spend_limits.set_limit(
            session, tenant_id=tenant_id, scope=scope, subject_id=subject_id, window=window,
            amount_nanos=round(dollars * DOLLAR),
        )  # fmt: skip


def spent(stage, tenant_id: str, bounds: WindowBounds) -> int:
    with unit_of_work(stage.engine) as session:
        return spent_in(session, tenant_id, bounds)


@pytest.mark.scenario(93)
def test_a_limit_shows_what_was_spent_in_the_window_of_the_tenants_zone(stage, wallet):
    tenant = stage.tenant()
    stage.change("INSERT INTO tenant_calendars VALUES (:t, 'epoch', now(), 'month', 'Asia/Tokyo', NULL)", t=tenant)
    today = window_at("Asia/Tokyo", "day", stage.now())
    wallet.spend(tenant, 3, at=today.start - timedelta(milliseconds=1), key_id="key_1")
    wallet.spend(tenant, 6, at=today.start, key_id="key_1")
    wallet.spend(tenant, 1.2, at=today.start, key_id="key_2")
    wallet.spend(tenant, 0.6, at=today.start, key_id="key_2", adapter_id="ad_1", revision_id="rev_1")
    assert put(stage, tenant, "adapter", "day", 10, "ad_1").spent_nanos == 600_000_000
    limit = put(stage, tenant, "key", "day", 10, "key_1")
    assert (limit.spent_nanos, limit.window_start, limit.window_end) == (6 * DOLLAR, *today)
    assert limit.window_start.hour == 15
    with unit_of_work(stage.engine) as session:
        found = spending.read(session, [tenant])(tenant)
    zone, (_, published) = found.zone, found.limits
    assert (zone, published.amount_nanos, published.spent_nanos) == ("Asia/Tokyo", 10 * DOLLAR, 6 * DOLLAR)
    assert published.window_start_ms == clock.to_ms(today.start)


def test_windows_that_begin_within_an_hour_are_counted_exactly(stage, wallet):
    """Kolkata is 5:30 ahead of UTC."""
    tenant = stage.tenant()
    start = (stage.now() - timedelta(days=3)).astimezone(UTC).replace(hour=18, minute=30, second=0, microsecond=0)
    bounds = window_at("Asia/Kolkata", "day", start)
    assert bounds.start == start
    for dollars, at in (
        (0.6, start - timedelta(milliseconds=1)), (1.2, start), (2.4, start + timedelta(hours=5)),
        (4.8, bounds.end - timedelta(milliseconds=1)), (9.6, bounds.end),
    ):  # fmt: skip
        wallet.spend(tenant, dollars, at=at, adapter_id="ad_1", revision_id="rev_1")
    assert spent(stage, tenant, bounds) == 8_400_000_000
    assert spent(stage, tenant, WindowBounds(start, start + timedelta(minutes=10))) == 1_200_000_000


def test_a_limit_is_replaced_listed_and_deleted_and_their_number_is_bounded(stage, monkeypatch):
    tenant = stage.tenant()
    first = put(stage, tenant, "tenant", "day", 10)
    assert put(stage, tenant, "tenant", "day", 5).id == first.id
    put(stage, tenant, "adapter", "month", 2, "ad_1")
    monkeypatch.setattr(spend_limits, "SPEND_LIMITS_MAX", 2)
    with pytest.raises(AppError) as refusal:
        put(stage, tenant, "key", "day", 1, "key_1")
    assert refusal.value.code == "too_many_spend_limits"
    with unit_of_work(stage.engine) as session:
        found = spend_limits.list_limits(session, tenant)
        assert [(each.scope, each.amount_nanos) for each in found] == [("tenant", 5 * DOLLAR), ("adapter", 2 * DOLLAR)]
        assert spend_limits.list_limits(session, stage.tenant()) == []
        spend_limits.delete_limit(session, tenant_id=tenant, limit_id=first.id)
    with unit_of_work(stage.engine) as session, pytest.raises(AppError, match="not found"):
        spend_limits.delete_limit(session, tenant_id=tenant, limit_id=first.id)
