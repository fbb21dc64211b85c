"""Tokens are progress, and so is a prompt that fills the cache; pages allocated and freed without a token are not."""

import pytest

from data_plane.engine.agent import engine_state
from data_plane.engine.agent.engine_client import EngineMetrics


class Engine:
    """The counters of an engine and its ``EngineProgress``, one scrape per second."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 100.0
        self.counters = {"prompt_tokens": 10, "generation_tokens": 10, "kv_used": 0.0}
        monkeypatch.setattr(engine_state.time, "monotonic", lambda: self.now_s)
        self.progress = engine_state.EngineProgress()
        self.quiet_s()

    def quiet_s(self, **changes: float) -> float:
        """Seconds without progress, after another second with these changes."""
        self.now_s += 1
        self.counters |= changes
        self.progress.record_scrape(EngineMetrics(**self.counters, running=1, waiting=0, blocks=100, block_tokens=32))
        return self.now_s - self.progress.last_at_s


@pytest.fixture
def engine(monkeypatch) -> Engine:
    return Engine(monkeypatch)


def test_constant_counters_are_no_progress(engine):
    assert [engine.quiet_s() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("counter", ["prompt_tokens", "generation_tokens"])
def test_a_token_is_progress(engine, counter):
    engine.quiet_s()
    assert engine.quiet_s(**{counter: 11}) == 0
    assert engine.quiet_s() == 1


def test_a_long_prompt_that_fills_the_cache_is_progress_before_its_first_token(engine):
    assert [engine.quiet_s(kv_used=used) for used in (0.1, 0.2, 0.3)] == [0, 0, 0]
    assert engine.quiet_s() == 1


def test_pages_allocated_and_freed_without_a_token_are_no_progress(engine):
    engine.quiet_s(kv_used=0.1)
    assert [engine.quiet_s(kv_used=used) for used in (0.0, 0.1, 0.0, 0.1)] == [1, 2, 3, 4]


def test_a_token_resets_the_cache_level(engine):
    engine.quiet_s(kv_used=0.8)
    engine.quiet_s(generation_tokens=11, kv_used=0.1)
    assert engine.quiet_s(kv_used=0.2) == 0


def test_an_answered_probe_is_progress(engine):
    engine.quiet_s()
    engine.progress.record_probe()
    assert engine.quiet_s() == 1
