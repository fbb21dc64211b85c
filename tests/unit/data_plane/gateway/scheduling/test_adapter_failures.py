"""Which replicas are spared an adapter, and for how long that is remembered of how many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.scheduling import circuit_breaker
from data_plane.gateway.scheduling.circuit_breaker import AdapterFailures, CircuitBreakers
from tests.unit.data_plane.gateway.scheduling.test_circuit_breaker import replica


def noted(failures: AdapterFailures, adapter: str, replica_id: str = "rep_one", now_s: float = 100.0) -> bool:
    return failures.record(adapter, replica_id, now_s=now_s, until_s=now_s + 5)


def test_a_failure_is_of_one_replica_and_one_adapter_and_ends_by_itself():
    failures = AdapterFailures(adapters_max=8)
    assert noted(failures, "ad_1")
    assert failures.failed_replicas("ad_1", now_s=104.9) == {"rep_one"}
    assert failures.failed_replicas("ad_2", now_s=100) == frozenset()
    assert noted(failures, "ad_1", "rep_two", now_s=103)
    assert failures.failed_replicas("ad_1", now_s=104.9) == {"rep_one", "rep_two"}
    assert failures.failed_replicas("ad_1", now_s=105) == {"rep_two"}
    assert failures.failed_replicas("ad_1", now_s=108) == frozenset()


def test_it_is_news_once_until_it_is_forgotten_and_lasts_from_the_latest_failure_on():
    failures = AdapterFailures(adapters_max=8)
    assert [noted(failures, "ad_1", now_s=now_s) for now_s in (100, 101, 104, 109)] == [True, False, False, True]
    assert failures.failed_replicas("ad_1", now_s=113.9) == {"rep_one"}


def test_of_too_many_adapters_those_that_failed_longest_ago_are_forgotten():
    failures = AdapterFailures(adapters_max=2)
    for adapter in ("ad_1", "ad_2", "ad_1", "ad_3"):
        noted(failures, adapter)
    assert [bool(failures.failed_replicas(adapter, now_s=100)) for adapter in ("ad_1", "ad_2", "ad_3")] == [
        True,
        False,
        True,
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0, 3)), max_size=60), st.integers(1, 4))
def test_no_more_is_known_than_has_failed_lately_and_of_no_more_adapters_than_there_may_be(steps, adapters_max):
    failures, latest, now_s = AdapterFailures(adapters_max=adapters_max), {}, 0.0
    for adapter, number, pause_s in steps:
        now_s += pause_s
        noted(failures, f"ad_{adapter}", f"rep_{number}", now_s)
        latest[adapter, number] = now_s
        known = {each: failures.failed_replicas(f"ad_{each}", now_s=now_s) for each in range(6)}
        assert sum(map(bool, known.values())) <= adapters_max
        assert f"rep_{number}" in known[adapter]
        for each, names in known.items():
            assert names <= {f"rep_{one}" for (of, one), at_s in latest.items() if of == each and at_s + 5 > now_s}


@pytest.fixture
def stage(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(circuit_breaker.time, "monotonic", lambda: now[0])

    async def probe(_replica):
        return True

    return CircuitBreakers(probe, failures=1, open_s=5, open_max_s=20, trial_s=30), now


def test_an_adapter_that_cannot_be_brought_in_opens_no_breaker(stage):
    breakers, now = stage
    for _ in range(50):
        breakers.adapter_failed(replica(), "ad_1", backoff_s=5)
    assert breakers.allows(replica())
    assert breakers.failed_by("ad_1") == {"rep_one"}
    breakers.succeeded(replica())  # with another adapter, say
    assert breakers.failed_by("ad_1") == {"rep_one"}
    now[0] += 5
    assert breakers.failed_by("ad_1") == frozenset()
