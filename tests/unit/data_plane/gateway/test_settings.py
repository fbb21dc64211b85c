"""Intervals that must be shorter than a timeout are checked when the gateway reads its settings."""

import pytest

from core.errors import InvalidSettings
from tests.fixtures.gateway.requests import settings_with


@pytest.mark.parametrize(
    ("interval", "timeout"),
    [
        ({"lease_renewal_s": 20}, {"lease_s": 20}),
        ({"heartbeat_period_ms": 5000}, {"heartbeat_lease_s": 5}),
        ({"replica_poll_ms": 30_000}, {"engine_stalled_s": 30}),
    ],
)
def test_an_interval_that_reaches_its_timeout_is_refused_with_both_names_and_the_fix(interval, timeout):
    with pytest.raises(InvalidSettings) as refused:
        settings_with(**interval, **timeout)
    for name in (*interval, *timeout):
        assert f"TENORA_{name.upper()}" in str(refused.value)
    assert "Lower the first or raise the second" in str(refused.value)


def test_a_refused_interval_is_shown_in_the_unit_of_its_name():
    with pytest.raises(InvalidSettings, match="TENORA_HEARTBEAT_PERIOD_MS is 5000 ms, TENORA_HEARTBEAT_LEASE_S is 5 s"):
        settings_with(heartbeat_period_ms=5000, heartbeat_lease_s=5)


def test_an_interval_below_its_timeout_is_accepted():
    accepted = settings_with(lease_renewal_s=19.5, lease_s=20, heartbeat_period_ms=1999, heartbeat_lease_s=2)
    assert accepted.lease_renewal_s == 19.5
