"""An active request settles once, however it ends, and reference counting frees it: with 10,000 streams, a garbage
collection would stop all of them.
"""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest

from data_plane.gateway.admission.admission import Placement
from data_plane.gateway.api.request_phases import RequestPhases
from data_plane.gateway.api.token_counts import TokenCounts
from data_plane.gateway.quota.rate_limit_response import ReservationResult
from data_plane.gateway.request.active_request import ActiveRequest
from data_plane.gateway.routes import _drop_traceback
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.settlement.settler import Hold
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import AttemptResult, Dispatch
from data_plane.gateway.upstream.engine_client import EngineClient, LocalShortage, ReplicaFailed
from data_plane.gateway.upstream.relay import Relay, RetryBudget
from tests.fixtures.gateway.requests import inference_request, replica_status, settings_with

SETTINGS, REPLICA = settings_with(), replica_status("rep_one")
VERDICT = ReservationResult(
    blocked_by="", level="", wait_us=0, limit=-1, remaining=-1, fits=0, max_tokens=16, pages=2, requests_limit=-1,
    requests_remaining=-1, requests_reset_us=0, tokens_limit=-1, tokens_remaining=-1, tokens_reset_us=0,
    replica_pages_held=2,
)  # fmt: skip


CLIENT = SimpleNamespace(started=False, watch=lambda _on_gone: None, phases=RequestPhases(), line=None)


class RecordingSettler:
    """Records what is attached, settled and released."""

    def __init__(self) -> None:
        self.running: dict[str, ActiveRequest] = {}
        self.settled: list[str] = []
        self.released: list[str] = []

    def attach(self, hold: Hold, running: ActiveRequest) -> None:
        self.running[hold.request_id] = running

    async def settle(self, settlement) -> None:
        self.settled.append(settlement.request_id)

    def release(self, hold: Hold) -> None:
        self.running.pop(hold.request_id, None)
        self.released.append(hold.request_id)


def relay_without_connections(*, failed_before: bool = False) -> Relay:
    async def healthy(_replica) -> bool:
        return True

    engines = EngineClient(
        engine_key="e", connect_s=1, keepalive_s=1, connections_max=0, connections_spare=1, head_max_bytes=1024,
        unread_max_bytes=1024,
    )  # fmt: skip
    breakers = CircuitBreakers(healthy, failures=1, open_s=60, open_max_s=60, trial_s=1)
    if failed_before:
        breakers.failed(REPLICA)
    return Relay(engines, breakers, None, None, RetryBudget(percent=10, burst=1), SETTINGS, None)


def active_request(settler: RecordingSettler, ended: list) -> ActiveRequest:
    admission = SimpleNamespace(ended=lambda request, _placement, event: ended.append((request.id, event)))
    placement = Placement(
        REPLICA, Hold("req_1", "tn_1", "rep_one", 2), VERDICT, SimpleNamespace(occupancy=SimpleNamespace())
    )
    return ActiveRequest(
        SETTINGS, RedisClock(), admission, relay_without_connections(), settler, CLIENT, inference_request(), placement
    )


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


async def test_a_request_that_fails_settles_once_and_is_freed_without_the_collector(no_collector):
    settler, ended = RecordingSettler(), []
    gone = None
    try:
        async with active_request(settler, ended) as active:
            gone = weakref.ref(active)
            assert settler.running == {"req_1": active}
            await active.run(b"{}")
    except LocalShortage as error:
        _drop_traceback(error)
    assert (settler.settled, settler.released, ended) == (["req_1"], ["req_1"], [("req_1", None)])
    assert not settler.running
    del active
    assert gone is not None
    assert gone() is None


async def test_a_settlement_that_cannot_be_computed_releases_the_reservation(monkeypatch):
    settler, ended = RecordingSettler(), []

    def broken(_self):
        raise ValueError("a defect")

    monkeypatch.setattr(ActiveRequest, "_settlement", broken)
    with pytest.raises(ValueError, match="a defect"):
        async with active_request(settler, ended):
            pass
    assert (settler.settled, settler.released, ended) == ([], ["req_1"], [("req_1", None)])


@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_shortage_of_connections_in_this_process_is_neither_a_replicas_failure_nor_its_recovery(failed_before):
    relay = relay_without_connections(failed_before=failed_before)
    dispatch = Dispatch(REPLICA, None, b"{}", [], asyncio.get_running_loop().time() + 5)
    with pytest.raises(LocalShortage) as refused:
        await relay.run(relay.attempt(CLIENT, inference_request(), dispatch))
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert relay._breakers.allows(REPLICA) is not failed_before


async def test_a_batch_request_may_give_way_on_each_replica_that_it_tries():
    """Also on the second one, where it was asked to leave the first one just as that failed."""
    ended, ran = [], []

    def placed(name: str) -> Placement:
        occupancy = SimpleNamespace(begin_batch=lambda _run: ran.append(name))
        return Placement(REPLICA, Hold("req_1", "tn_1", name, 2), VERDICT, SimpleNamespace(occupancy=occupancy))

    async def to_another(*_given: object) -> Placement:
        return placed("rep_two")

    async def run(_attempt: object) -> AttemptResult:
        if len(ran) == 1:
            raise ReplicaFailed("It failed before its first token.")
        return AttemptResult("timeout", TokenCounts())

    admission = SimpleNamespace(
        ended=lambda _request, _placement, event: ended.append(event), moves=SimpleNamespace(to_another=to_another)
    )
    relay = SimpleNamespace(
        retries=SimpleNamespace(deposit=lambda: None, withdraw=lambda: True),
        attempt=lambda *_given: SimpleNamespace(
            counts=TokenCounts, first_byte_at=None, itl_p95_ms=None, finish_reason=None
        ),
        run=run,
    )
    batch = inference_request(service_class="batch")
    async with ActiveRequest(
        SETTINGS, RedisClock(), admission, relay, RecordingSettler(), CLIENT, batch, placed("rep_one")
    ) as active:
        await active.run(b"{}")
    assert ran == ["rep_one", "rep_two"]
    assert len(ended) == 1
