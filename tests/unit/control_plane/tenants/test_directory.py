"""How near a tenant is to a limit: the most used of its monthly tokens, its plan's spending limit and its own."""

import msgspec
import pytest

from billing.limits.views import SpendLimitView
from billing.usage.months import MonthUse
from control_plane.tenants.directory import limit_used_ppm
from core import clock
from core.contracts.grants import Limits
from tests.fixtures.control_plane.api import LIMITS

PLAN = msgspec.convert(LIMITS | {"tokens_per_month": 1_000}, Limits)


def own(scope: str, spent: int, amount: int) -> SpendLimitView:
    now = clock.now()
    return SpendLimitView(
        id="spl_1", scope=scope, subject_id="", window="month", amount_nanos=amount, spent_nanos=spent,
        window_start=now, window_end=now, created_at=now, updated_at=now,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "used", "own_limits", "expected"),
    [
        ({}, (0, 0, 0), (), 0),
        ({}, (250, 200, 10**12), (), 250_000),
        ({"count_cached_tokens": False}, (250, 200, 0), (), 50_000),
        ({"spend_nanos_per_month": 2_000}, (250, 0, 1_500), (), 750_000),
        ({"spend_nanos_per_month": 0}, (0, 0, 0), (), 1_000_000),
        ({}, (250, 0, 0), (own("tenant", 9, 10), own("key", 10, 10)), 900_000),
        ({}, (3_000, 0, 0), (), 3_000_000),
    ],
)
def test_the_most_used_limit_counts(limits, used, own_limits, expected):
    assert limit_used_ppm(msgspec.structs.replace(PLAN, **limits), MonthUse(*used), own_limits) == expected
