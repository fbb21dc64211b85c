"""When a replica's circuit opens and closes, how long adapter failures are remembered, and how many retries the budget
allows.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.replicas import ReplicaStatus
from data_plane.gateway.scheduling import circuit_breaker
from data_plane.gateway.scheduling.circuit_breaker import AdapterFailures, CircuitBreakers
from data_plane.gateway.upstream.relay import RetryBudget
from tests.fixtures.gateway.requests import replica_status


class Stage:
    """CircuitBreakers whose clock and whose replicas' health are the test's."""

    def __init__(self, monkeypatch) -> None:
        self.now_s, self.healthy, self.asked = 100.0, True, 0
        monkeypatch.setattr(circuit_breaker.time, "monotonic", lambda: self.now_s)
        self.breakers = CircuitBreakers(self.probe, failures=3, open_s=5, open_max_s=20, trial_s=30)

    async def probe(self, _replica: ReplicaStatus) -> bool:
        self.asked += 1
        return self.healthy

    def fails(self, times: int = 1, one: ReplicaStatus | None = None) -> None:
        for _ in range(times):
            self.breakers.failed(one or replica_status())


@pytest.fixture
def stage(monkeypatch) -> Stage:
    return Stage(monkeypatch)


async def test_a_circuit_opens_after_consecutive_failures_and_for_one_replica_only(stage):
    stage.fails(2)
    stage.breakers.succeeded(replica_status())
    stage.fails(2)
    assert stage.breakers.allows(replica_status())
    stage.fails(1)
    assert not stage.breakers.allows(replica_status())
    assert stage.breakers.allows(replica_status("rep_two"))


async def test_after_the_pause_a_health_check_comes_first_and_then_one_trial_request(stage):
    stage.fails(3)
    stage.now_s += 6
    assert not stage.breakers.allows(replica_status())  # no health check has succeeded yet
    stage.healthy = False
    await stage.breakers.probe()
    assert not stage.breakers.allows(replica_status())
    await stage.breakers.probe()
    assert stage.asked == 1  # it has a pause again
    stage.now_s += 6
    stage.healthy = True
    await stage.breakers.probe()
    assert stage.breakers.allows(replica_status())
    stage.breakers.started(replica_status())
    assert not stage.breakers.allows(replica_status())  # one trial at a time
    stage.breakers.succeeded(replica_status())
    assert stage.breakers.allows(replica_status())


async def test_a_replica_that_fails_its_trial_waits_longer_each_time_up_to_a_bound(stage):
    stage.fails(3)
    for pause_s in (5, 10, 20, 20):
        stage.now_s += pause_s - 1
        await stage.breakers.probe()
        assert not stage.breakers.allows(replica_status())
        stage.now_s += 2
        await stage.breakers.probe()
        assert stage.breakers.allows(replica_status())
        stage.breakers.started(replica_status())
        stage.fails(1)
        assert not stage.breakers.allows(replica_status())


async def test_requests_that_ran_when_the_circuit_opened_do_not_lengthen_the_pause(stage):
    stage.fails(50)
    stage.now_s += 6
    await stage.breakers.probe()
    assert stage.breakers.allows(replica_status())


async def test_a_trial_without_a_report_expires(stage):
    stage.fails(3)
    stage.now_s += 6
    await stage.breakers.probe()
    stage.breakers.started(replica_status())
    stage.now_s += 31
    assert stage.breakers.allows(replica_status())


async def test_a_restarted_engine_begins_with_a_closed_circuit(stage):
    stage.fails(3)
    assert stage.breakers.allows(replica_status(boot_id="boot_2"))
    stage.fails(2, replica_status(boot_id="boot_2"))
    assert stage.breakers.allows(replica_status(boot_id="boot_2"))


@given(failing=st.lists(st.booleans(), max_size=400), percent=st.integers(0, 100), burst=st.integers(0, 20))
def test_retries_never_exceed_their_share_of_requests(failing, percent, burst):
    budget = RetryBudget(percent=percent, burst=burst)
    retries = 0
    for requests, fails in enumerate(failing, start=1):
        budget.deposit()
        retries += fails and budget.withdraw()
        assert retries * 100 <= requests * percent + burst * 100


def test_a_budget_that_was_spent_fills_again():
    budget = RetryBudget(percent=10, burst=1)
    assert budget.withdraw()
    assert not budget.withdraw()
    for _ in range(10):
        budget.deposit()
    assert budget.withdraw()


def record(failures: AdapterFailures, adapter: str, replica_id: str = "rep_one", now_s: float = 100.0) -> bool:
    return failures.record(adapter, replica_id, now_s=now_s, until_s=now_s + 5)


def test_an_adapter_failure_concerns_one_replica_and_one_adapter_and_expires():
    failures = AdapterFailures(adapters_max=8)
    assert record(failures, "ad_1")
    assert failures.failed_replicas("ad_1", now_s=104.9) == {"rep_one"}
    assert failures.failed_replicas("ad_2", now_s=100) == frozenset()
    assert record(failures, "ad_1", "rep_two", now_s=103)
    assert failures.failed_replicas("ad_1", now_s=104.9) == {"rep_one", "rep_two"}
    assert failures.failed_replicas("ad_1", now_s=105) == {"rep_two"}
    assert failures.failed_replicas("ad_1", now_s=108) == frozenset()


def test_an_adapter_failure_is_new_once_until_it_expires_and_lasts_from_the_latest_one():
    failures = AdapterFailures(adapters_max=8)
    assert [record(failures, "ad_1", now_s=now_s) for now_s in (100, 101, 104, 109)] == [True, False, False, True]
    assert failures.failed_replicas("ad_1", now_s=113.9) == {"rep_one"}


def test_above_the_limit_the_oldest_adapter_failures_are_removed():
    failures = AdapterFailures(adapters_max=2)
    for adapter in ("ad_1", "ad_2", "ad_1", "ad_3"):
        record(failures, adapter)
    assert [bool(failures.failed_replicas(adapter, now_s=100)) for adapter in ("ad_1", "ad_2", "ad_3")] == [
        True,
        False,
        True,
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0, 3)), max_size=60), st.integers(1, 4))
def test_only_recent_adapter_failures_are_known_and_only_of_adapters_max_adapters(steps, adapters_max):
    failures, latest, now_s = AdapterFailures(adapters_max=adapters_max), {}, 0.0
    for adapter, number, pause_s in steps:
        now_s += pause_s
        record(failures, f"ad_{adapter}", f"rep_{number}", now_s)
        latest[adapter, number] = now_s
        known = {each: failures.failed_replicas(f"ad_{each}", now_s=now_s) for each in range(6)}
        assert sum(map(bool, known.values())) <= adapters_max
        assert f"rep_{number}" in known[adapter]
        for each, names in known.items():
            assert names <= {f"rep_{one}" for (of, one), at_s in latest.items() if of == each and at_s + 5 > now_s}


def test_an_adapter_that_cannot_be_loaded_opens_no_circuit(stage):
    breakers = stage.breakers
    for _ in range(50):
        breakers.adapter_failed(replica_status(), "ad_1", backoff_s=5)
    assert breakers.allows(replica_status())
    assert breakers.failed_by("ad_1") == {"rep_1"}
    breakers.succeeded(replica_status())  # with another adapter, say
    assert breakers.failed_by("ad_1") == {"rep_1"}
    stage.now_s += 5
    assert breakers.failed_by("ad_1") == frozenset()
