"""The control plane's view of a tenant's quota state."""

from datetime import UTC, datetime

import msgspec

from control_plane.usage.api import quota_view
from core.contracts.grants import Limits
from core.quota_state import FIELDS, read_level
from tests.fixtures.control_plane.api import LIMITS

LIMIT = Limits(**LIMITS)
NOW_US = int(datetime(2026, 3, 5, tzinfo=UTC).timestamp()) * 1_000_000


def seen(limits: Limits = LIMIT, **fields: bytes):
    level = read_level([fields.get(name) for name in FIELDS], now_us=NOW_US)
    return quota_view(level, limits=limits, adapters=0)


def test_a_tenant_that_never_called_has_used_and_holds_nothing():
    quota = seen()
    assert set(msgspec.structs.astuple(quota.used)) == {0}
    assert set(msgspec.structs.astuple(quota.held)) == {0}


def test_a_minute_without_a_limit_is_not_counted():
    later = str(NOW_US + 30_000_000).encode()
    assert seen(output_tat_us=later).used.output_tokens_per_minute == 0
    limited = msgspec.structs.replace(LIMIT, output_tokens_per_minute=100)
    assert seen(limited, output_tat_us=later).used.output_tokens_per_minute == 50
