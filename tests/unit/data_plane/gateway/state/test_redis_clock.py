"""Gateways' timestamps are Redis's time, whatever their own machine's clock says."""

import time

import pytest

from core import clock
from data_plane.gateway.state.redis_clock import RedisClock

HOUR_MS = 3_600_000


@pytest.mark.parametrize("wrong_ms", [-HOUR_MS, HOUR_MS])
def test_a_machine_with_a_wrong_clock_stamps_the_redis_time(monkeypatch, wrong_ms):
    true_ms = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: true_ms + wrong_ms)
    here = RedisClock()
    assert abs(here.now_ms() - true_ms) >= HOUR_MS - 1000  # no Redis time has been read yet
    here.synchronize(true_ms // 1000, 999_999)
    assert 0 <= here.now_ms() - (true_ms // 1000 * 1000 + 999) < 1000


def test_setting_the_machines_clock_does_not_move_the_redis_time(monkeypatch):
    here = RedisClock()
    here.synchronize(1_790_000_000, 0)
    before = here.now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert 0 <= here.now_ms() - before < 1000
