"""How a caller sees a limit on GPU-seconds: in seconds, though quotas count microseconds."""

import pytest

from data_plane.gateway.quota.rate_limit_response import ReservationResult, quota_exceeded


def blocked(by: str, **fields: int) -> ReservationResult:
    values = dict.fromkeys(ReservationResult.__struct_fields__[2:-1], 0) | {"level": "tenant"} | fields
    return ReservationResult(blocked_by=by, **values)


@pytest.mark.parametrize(
    ("by", "wait_us", "code", "fix"),
    [
        ("gpu_seconds_per_minute", 5_000_000, "rate_limit_exceeded", "Please try again in 5s"),
        ("gpu_seconds_per_month", -1, "insufficient_quota", "Lower max_tokens to 7"),
    ],
)
def test_a_limit_on_gpu_seconds_is_named_in_seconds(by, wait_us, code, fix):
    refusal = quota_exceeded(blocked(by, wait_us=wait_us, limit=30_000_000, remaining=1_500_000, fits=7), tokens=99)
    span = by.rpartition("_")[2]
    assert f"The plan allows 30 GPU-seconds per {span}; 1.5 are left. {fix}" in refusal.message
    assert (refusal.code, refusal.limit) == (code, f"tenant.{by}")
