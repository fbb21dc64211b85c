"""When a replica is left alone and when it is tried again, and how many second attempts there may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.replicas import ReplicaStatus
from data_plane.gateway.scheduling import circuit_breaker
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.upstream.relay import RetryBudget


def replica(name: str = "rep_one", boot_id: str = "boot_1") -> ReplicaStatus:
    return ReplicaStatus(
        id=name, url="http://nowhere", base_model="m", state="ready", boot_id=boot_id, block_tokens=16, pages_total=8,
        pages_free=8, slots=1, running_requests=0, waiting_requests=0, heartbeat_ms=0,
    )  # fmt: skip


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
            self.breakers.failed(one or replica())


@pytest.fixture
def stage(monkeypatch) -> Stage:
    return Stage(monkeypatch)


async def test_it_opens_after_failures_in_a_row_and_for_one_replica_alone(stage):
    stage.fails(2)
    stage.breakers.succeeded(replica())
    stage.fails(2)
    assert stage.breakers.allows(replica())
    stage.fails(1)
    assert not stage.breakers.allows(replica())
    assert stage.breakers.allows(replica("rep_two"))


async def test_after_its_pause_it_is_asked_for_its_health_and_then_tried_by_one(stage):
    stage.fails(3)
    stage.now_s += 6
    assert not stage.breakers.allows(replica())  # nobody has asked it yet
    stage.healthy = False
    await stage.breakers.probe()
    assert not stage.breakers.allows(replica())
    await stage.breakers.probe()
    assert stage.asked == 1  # it has a pause again
    stage.now_s += 6
    stage.healthy = True
    await stage.breakers.probe()
    assert stage.breakers.allows(replica())
    stage.breakers.started(replica())
    assert not stage.breakers.allows(replica())  # one is enough to see
    stage.breakers.succeeded(replica())
    assert stage.breakers.allows(replica())


async def test_a_replica_that_fails_its_trial_waits_longer_each_time_up_to_a_bound(stage):
    stage.fails(3)
    for pause_s in (5, 10, 20, 20):
        stage.now_s += pause_s - 1
        await stage.breakers.probe()
        assert not stage.breakers.allows(replica())
        stage.now_s += 2
        await stage.breakers.probe()
        assert stage.breakers.allows(replica())
        stage.breakers.started(replica())
        stage.fails(1)
        assert not stage.breakers.allows(replica())


async def test_requests_that_ran_when_it_opened_make_its_pause_no_longer(stage):
    stage.fails(50)
    stage.now_s += 6
    await stage.breakers.probe()
    assert stage.breakers.allows(replica())


async def test_a_trial_that_nobody_reports_on_ends_by_itself(stage):
    stage.fails(3)
    stage.now_s += 6
    await stage.breakers.probe()
    stage.breakers.started(replica())
    stage.now_s += 31
    assert stage.breakers.allows(replica())


async def test_an_engine_that_started_anew_begins_without_a_past(stage):
    stage.fails(3)
    assert stage.breakers.allows(replica(boot_id="boot_2"))
    stage.fails(2, replica(boot_id="boot_2"))
    assert stage.breakers.allows(replica(boot_id="boot_2"))


@given(failing=st.lists(st.booleans(), max_size=400), percent=st.integers(0, 100), burst=st.integers(0, 20))
def test_second_attempts_never_pass_their_share(failing, percent, burst):
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
