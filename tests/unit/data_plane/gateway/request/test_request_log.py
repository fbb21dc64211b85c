"""Refusals above the bound are counted in the rows of their cause, and nothing is counted twice when Redis is away."""

from types import SimpleNamespace

import msgspec
import pytest
from redis.exceptions import ConnectionError as Away

from core import clock
from core.contracts.request_log import LoggedRequest
from core.ids import new_id
from data_plane.gateway.request.request_log import RequestLog
from data_plane.gateway.state.redis_clock import RedisClock


class Stream:
    """A Redis that keeps what is appended, or does not answer."""

    def __init__(self) -> None:
        self.batches: list[list[LoggedRequest]] = []
        self.away = False

    async def call(self, *command: object) -> None:
        if self.away:
            raise Away("away")
        self.batches.append(msgspec.json.decode(command[-1], type=list[LoggedRequest]))


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def log(stream) -> RequestLog:
    settings = SimpleNamespace(
        request_log_entries_max=10, request_log_refusals_max=3, request_log_refusals_s=1, settlement_deadline_s=1,
        gateway_access_log=False,
    )  # fmt: skip
    return RequestLog(stream, RedisClock(), settings)


def refusal(tenant_id: str = "tn_a", code: str = "overloaded") -> LoggedRequest:
    return LoggedRequest(request_id=new_id("req"), time=clock.now(), outcome="refused", tenant_id=tenant_id, code=code)


async def test_above_the_bound_a_row_stands_for_others_of_its_cause_and_another_cause_has_its_own(log, stream):
    for _ in range(10):
        log.add(refusal())
    log.add(refusal("tn_b"))
    await log.flush()
    [batch] = stream.batches
    assert [(row.tenant_id, row.count) for row in batch] == [("tn_a", 1), ("tn_a", 1), ("tn_a", 8), ("tn_b", 1)]


async def test_more_causes_than_twice_the_bound_are_dropped(log, stream):
    for number in range(20):
        log.add(refusal(f"tn_{number}"))
    await log.flush()
    assert len(stream.batches[0]) == 6


async def test_rows_wait_while_redis_is_away_and_their_counts_stay(log, stream):
    for _ in range(5):
        log.add(refusal())
    stream.away = True
    await log.flush()
    await log.flush()
    stream.away = False
    for _ in range(2):
        log.add(refusal())
    await log.flush()
    assert sum(row.count for row in stream.batches[0]) == 7
    await log.flush()
    assert len(stream.batches) == 1
