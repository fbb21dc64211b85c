"""What a gateway reports about its demand."""

from types import SimpleNamespace

import pytest

from core.contracts.usage import UsageEvent
from data_plane.gateway.admission import demand_report
from data_plane.gateway.admission.demand_report import DemandReport
from data_plane.gateway.scheduling.replica_load import ReplicaLoad
from tests.fixtures.gateway.requests import inference_request, replica_status


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> _Clock:
    monkeypatch.setattr(demand_report, "time", clock := _Clock())
    return clock


@pytest.fixture
def queue() -> list:
    return []


@pytest.fixture
def report(clock, queue) -> DemandReport:
    load = ReplicaLoad()
    load.begin("bot@1")
    replicas = SimpleNamespace(
        block_tokens=lambda _base_model: 16,
        candidates=lambda: [SimpleNamespace(status=replica_status(pool="chat"), load=load)],
    )
    waits = SimpleNamespace(waiting=lambda: iter(queue), tenant_demands=list)
    return DemandReport(None, "gw_1", replicas, waits, adapters_max=10)


def event(**changes) -> UsageEvent:
    given = {
        "request_id": "r", "tenant_id": "t", "key_id": "k", "base_model": "m", "adapter_id": None, "revision_id": None,
        "replica_id": "rep_1", "outcome": "done", "started_at_ms": 0, "settled_at_ms": 0, "input_tokens": 100,
        "cached_tokens": 0, "output_tokens": 11, "kv_page_ms": 0, "first_token_ms": 200, "duration_ms": 700,
    }  # fmt: skip
    return UsageEvent(**given | changes)


def test_waiting_and_just_refused_requests_count_by_base_model_and_rank(report, queue, clock):
    queue += [inference_request(), inference_request(adapter=f"bot@{'a' * 64}", rank=8)]
    report.refused(inference_request())
    by_rank = {demand.rank: demand for demand in report.report().waiting}
    assert (by_rank[0].requests, by_rank[0].pages, by_rank[0].adapters) == (2, 4, ())
    assert (by_rank[8].requests, by_rank[8].pages, len(by_rank[8].adapters)) == (1, 2, 1)
    clock.now += 6
    assert {demand.rank: demand.requests for demand in report.report().waiting} == {0: 1, 8: 1}


def test_flex_requests_wait_without_asking_for_pages(report, queue):
    queue += [inference_request(service_class="batch")]
    (demand,) = report.report().waiting
    assert (demand.requests, demand.pages) == (1, 0)


def test_a_pool_reports_its_tokens_and_latencies_once_there_are_enough(report, clock):
    clock.now += 10
    for _ in range(19):
        report.served("chat", event(), 1)
    report.served("", event(), 1)
    (served,) = report.report().served
    assert (served.pool, served.input_tokens_per_s, served.ttft_p95_ms) == ("chat", 190, None)
    assert len(served.adapters) == 1
    report.served("chat", event(first_token_ms=900, duration_ms=1900), 1)
    (served,) = report.report().served
    assert (served.ttft_p95_ms, served.itl_p95_ms) == (200, 50)
    report.served("chat", event(first_token_ms=900, duration_ms=1900), 1)
    (served,) = report.report().served
    assert (served.ttft_p95_ms, served.itl_p95_ms) == (900, 100)
