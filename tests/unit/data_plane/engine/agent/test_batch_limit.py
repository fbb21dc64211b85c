"""The limit of requests beside batch follows the time that a token takes with those that run."""

import pytest

from data_plane.engine.agent.batch_limit import BatchLimit
from data_plane.engine.agent.engine_client import EngineMetrics

FAST_S, MORE_S = 0.030, 0.005  # a token's time with one request, and what each further request adds


class Engine:
    """Counters and clock of an engine, reported each second."""

    def __init__(self, fast_s: float = FAST_S, more_s: float = MORE_S) -> None:
        self.fast_s, self.more_s = fast_s, more_s
        self.gaps, self.gaps_s, self.now_s = 0, 0.0, 0.0

    def second_of(self, running: int) -> tuple[EngineMetrics, float]:
        token_s = self.fast_s + self.more_s * (running - 1)
        self.now_s += 1.0
        self.gaps, self.gaps_s = self.gaps + round(running / token_s), self.gaps_s + running
        metrics = EngineMetrics(
            prompt_tokens=0, generation_tokens=0, running=running, waiting=0, kv_used=0.0, blocks=100, block_tokens=32,
            token_gaps=self.gaps, token_gaps_s=self.gaps_s,
        )  # fmt: skip
        return metrics, self.now_s


def limit_after(*running: int, engine: Engine, token_s_max: float = 0.1) -> int:
    """The limit of 64 sequences after a second with each of these numbers of requests."""
    limit = BatchLimit(64, token_s_max)
    for each in (0, *running):
        limit.observe(*engine.second_of(each))
    return limit.requests


def test_until_a_token_has_come_it_is_the_engines_own():
    assert limit_after(engine=Engine()) == 64


def test_it_is_what_keeps_tokens_fast_enough_whatever_runs_now():
    """0.1 s is left with 15 requests: 0.03 s, and 14 times 0.005 s."""
    assert limit_after(1, 60, engine=Engine()) == pytest.approx(15, abs=1)
    assert limit_after(1, 20, engine=Engine()) == pytest.approx(15, abs=1)
    assert limit_after(1, 9, engine=Engine()) == pytest.approx(15, abs=1)


def test_an_engine_that_is_never_fast_enough_may_get_half_as_slow_again():
    assert limit_after(1, 60, engine=Engine(fast_s=0.2, more_s=0.02)) == pytest.approx(5, abs=1)


def test_it_grows_step_by_step_where_more_requests_cost_nothing():
    engine = Engine(more_s=0.0)
    assert limit_after(1, engine=engine) == 4
    assert limit_after(1, 4, engine=engine) == 10
    assert limit_after(1, 4, 10, 22, 46, engine=engine) == 64


def test_it_stays_without_tokens_and_after_a_restart_of_the_engine():
    engine, limit = Engine(), BatchLimit(64, 0.1)
    for running in (0, 1, 60):
        limit.observe(*engine.second_of(running))
    found = limit.requests
    limit.observe(*engine.second_of(0))
    assert limit.requests == found
    limit.observe(Engine().second_of(1)[0], engine.now_s + 1)
    assert limit.requests == found
