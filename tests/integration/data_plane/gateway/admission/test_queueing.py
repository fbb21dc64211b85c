"""The wait queue at the gateway: which requests wait for room on a replica, their order, and what other requests see.

The replica holds every answer after its first token until the test releases it.
"""

import threading
import time

import openai
import pytest
from openai.types.chat import ChatCompletion

from core.contracts.grants import Prices
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import Stack, Tenant, chat

PAGES = 8  # two requests of 26 + 33 tokens
TOKENS = 33
HELD = {"output_tokens": TOKENS, "token_interval_s": 0, "held": True}


@pytest.fixture(scope="module")
def witnesses():
    """One replica of two slots and pages for two requests."""
    return {"rep_one": {"pages": PAGES, "slots": 2}}


@pytest.fixture(scope="module")
def gateway_settings():
    long = ("queue_wait_s", "queue_overdue_after_s", "inter_token_s", "first_byte_s", "engine_stalled_s")
    return {**dict.fromkeys(long, 60), "queue_requests_max": 4}


@pytest.fixture
def stack(stack):
    stack.witness.faults(**HELD)
    yield stack
    wait_until(lambda: stack.held_pages() == 0)


class Asked(threading.Thread):
    """One request in its own thread."""

    def __init__(self, client: openai.OpenAI, **options: object) -> None:
        super().__init__()
        self.client, self.options = client, options
        self.error: openai.APIStatusError | None = None
        self.answer: ChatCompletion | None = None
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            self.answer = chat(self.client, **{"max_tokens": TOKENS, **self.options})
        except openai.APIStatusError as error:
            self.error = error
        self.ended_at = time.monotonic()


def waiting(gateway: processes.GatewayProcess) -> float:
    return gateway.metric("tenora_gateway_waiting_requests")


def fill(client: openai.OpenAI, count: int = 2, **options: object) -> list:
    """Streams that hold the replica's pages."""
    streams = [chat(client, stream=True, **{"max_tokens": TOKENS, **options}) for _ in range(count)]
    for stream in streams:
        next(iter(stream))
    return streams


def queued(stack: Stack, tenant: Tenant, client: openai.OpenAI, count: int, **options: object) -> list[Asked]:
    """Requests that wait now."""
    before = waiting(stack.gateway)
    threads = [Asked(client, **options) for _ in range(count)]
    wait_until(lambda: waiting(stack.gateway) == before + count, what=f"{tenant.id}'s requests to wait")
    return threads


def reached(witness: processes.WitnessProcess, since: int, count: int) -> list[dict]:
    """The bodies of the requests that reached the replica after its first ``since``, once they are ``count``."""
    wait_until(lambda: len(witness.received()) >= since + count, what="requests to run")
    bodies = [line["body"] for line in witness.received()[since:]]
    assert len(bodies) == count
    return bodies


def finish(witness: processes.WitnessProcess, streams: list, *rest: list[Asked]) -> None:
    """Let everything run to its end."""
    witness.faults(**HELD | {"held": False})
    witness.release(len(streams))
    for stream in streams:
        list(stream)
    for threads in rest:
        served(threads)


def served(threads: list[Asked]) -> None:
    for thread in threads:
        thread.join()
        assert thread.error is None


def test_a_better_tier_goes_first_and_a_newcomer_does_not_wait_behind_a_backlog(stack):
    flood, quiet, best = stack.tenant(), stack.tenant(), stack.tenant(tier=0)
    since = len(stack.witness.received())
    streams = fill(flood.sdk())
    backlog = queued(stack, flood, flood.sdk(), 2, content="b")
    newcomer = queued(stack, quiet, quiet.sdk(), 1, content="n")
    first = queued(stack, best, best.sdk(), 1, content="t")
    for ran in range(4):  # the places become free one by one
        stack.witness.release(1)
        reached(stack.witness, since, 3 + ran)
    contents = [body["messages"][0]["content"] for body in reached(stack.witness, since, 6)]
    assert contents in (["hi", "hi", "t", "b", "n", "b"], ["hi", "hi", "t", "n", "b", "b"])
    stack.witness.release(2)
    for stream in streams:
        list(stream)
    served([*backlog, *newcomer, *first])


def test_a_full_queue_refuses_without_asking_redis_and_admits_a_tenant_with_fewer_waiting(stack):
    flood, quiet = stack.tenant(), stack.tenant()
    flooding, asking = flood.sdk(), quiet.sdk()
    streams = fill(flooding)
    reserved = stack.gateway.metric("tenora_gateway_reserve_seconds_count")
    backlog = queued(stack, flood, flooding, 4)
    # Each is checked once against its tenant's limits when it begins to wait.
    wait_until(
        lambda: stack.gateway.metric("tenora_gateway_reserve_seconds_count") >= reserved + 4, what="them to be checked"
    )
    reserved = stack.gateway.metric("tenora_gateway_reserve_seconds_count")
    began, refused = time.monotonic(), []
    for _ in range(10):
        with pytest.raises(openai.InternalServerError) as caught:
            chat(flooding, max_tokens=TOKENS)
        refused.append(caught.value)
    took_s = time.monotonic() - began
    assert {(error.status_code, error.code) for error in refused} == {(503, "overloaded")}
    assert all(1 <= int(error.response.headers["retry-after"]) <= 60 for error in refused)
    asked = stack.gateway.metric("tenora_gateway_reserve_seconds_count") - reserved
    assert asked <= took_s / 0.02, "more than the polls of the waiting requests"
    newcomer = Asked(asking)  # the newest of the flood makes room
    pushed_out = wait_until(
        lambda: [thread for thread in backlog if thread.error], what="one of the flood to be refused"
    )
    finish(stack.witness, streams, [thread for thread in backlog if thread not in pushed_out], [newcomer])
    assert [thread.error.code for thread in pushed_out] == ["overloaded"]


def test_a_flex_request_waits_for_default_ones_and_pays_the_batch_factor(stack):
    prices, half = (
        Prices(input_nanos=0, cached_input_nanos=0, output_nanos=nanos, kv_page_second_nanos=0) for nanos in (600, 300)
    )
    tenant = stack.tenant(prices=prices, flex_prices=half)
    client, since = tenant.sdk(), len(stack.witness.received())
    streams = fill(client)
    flex = queued(stack, tenant, client, 1, content="flex", service_tier="flex")
    others = queued(stack, tenant, client, 2, content="default")
    for ran in range(3):
        stack.witness.release(1)
        reached(stack.witness, since, 3 + ran)
    contents = [body["messages"][0]["content"] for body in reached(stack.witness, since, 5)]
    assert contents == ["hi", "hi", "default", "default", "flex"]
    assert int(tenant.quota()["spend_held_nanos"]) == 600 * TOKENS + 300 * TOKENS, "one of each runs"
    finish(stack.witness, streams, [*flex, *others])
    wait_until(tenant.holds_nothing, what="every hold to be given back")
    events = tenant.events()
    assert [event.service_tier for event in events] == ["default"] * 4 + ["flex"]
    assert int(tenant.quota()["spent_nanos"]) == 600 * TOKENS * 4 + 300 * TOKENS
    assert flex[0].answer.service_tier == "flex"
