"""Which requests wait for room on a replica, in which order they get it, and what other requests see meanwhile."""

import contextlib
import threading
import time

import openai
import pytest

from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher, newest_name
from tests.integration.data_plane.conftest import BRISK, Stack, Tenant, chat, emptied

PAGES = 8  # two requests of 26 + 33 tokens
TOKENS = 33
RUNS_S = 2.3  # so long a request runs: enough for those who are to wait behind it to come, on a slow machine too
SETTINGS = {**BRISK, "admission_wait_s": 8, "admission_overtake_s": 1, "admission_waiting_max": 4}


@pytest.fixture(scope="module")
def small(redis_server, tmp_path_factory):
    """One replica of two slots and pages for two requests, without a gateway."""
    folder = tmp_path_factory.mktemp("small")
    with contextlib.ExitStack() as up:
        client = up.enter_context(emptied(redis_server))
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        yield client, publisher, up.enter_context(processes.witness(folder, redis_server, pages=PAGES, slots=2))


@pytest.fixture
def stack(small, redis_server, tmp_path):
    """A gateway that has not seen yet how fast its queue empties."""
    client, publisher, witness = small
    witness.faults(output_tokens=TOKENS, token_interval_s=RUNS_S / TOKENS)
    with contextlib.ExitStack() as opened:
        gateway = opened.enter_context(processes.gateway(tmp_path, redis_server, "one", **SETTINGS))
        yield Stack(client, publisher, witness, gateway, tmp_path, redis_server, opened)
    wait_until(lambda: int(client.hget(redis_keys.replica_held_pages("rep_one"), "total") or 0) == 0)


class Asked(threading.Thread):
    """One request in its own thread."""

    def __init__(self, client: openai.OpenAI, **options: object) -> None:
        super().__init__()
        self.client, self.options = client, options
        self.error: openai.APIStatusError | None = None
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            chat(self.client, **{"max_tokens": TOKENS, **self.options})
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


def ended(threads: list[Asked]) -> list[float]:
    for thread in threads:
        thread.join()
        assert thread.error is None
    return sorted(thread.ended_at for thread in threads)


def test_a_better_tier_goes_first_and_a_newcomer_does_not_wait_behind_a_backlog(stack):
    flood, quiet, best = stack.tenant(), stack.tenant(), stack.tenant(tier=0)
    flooding, asking, first = flood.sdk(), quiet.sdk(), best.sdk()
    streams = fill(flooding, 1, max_tokens=TOKENS // 2) + fill(flooding, 1)  # the places become free one by one
    backlog = queued(stack, flood, flooding, 2)
    newcomer = queued(stack, quiet, asking, 1)
    favourite = queued(stack, best, first, 1)
    for stream in streams:
        list(stream)
    backlog_ends = ended(backlog)
    assert ended(favourite)[0] < backlog_ends[1]
    assert ended(newcomer)[0] < backlog_ends[1]


def test_a_full_queue_refuses_without_asking_redis_and_lets_in_who_has_less_there(stack):
    flood, quiet = stack.tenant(), stack.tenant()
    flooding, asking = flood.sdk(), quiet.sdk()
    stack.witness.faults(output_tokens=TOKENS, token_interval_s=0.1)
    streams = fill(flooding)
    stack.witness.faults(output_tokens=TOKENS, token_interval_s=0.01)
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
    assert asked <= took_s / 0.02, "more than the polls of those who wait"
    newcomer = Asked(asking)  # the newest of the flood makes room
    wait_until(lambda: any(thread.error for thread in backlog), what="one of the flood to be pushed out")
    for stream in streams:
        list(stream)
    newcomer.join()
    for thread in backlog:
        thread.join()
    assert newcomer.error is None
    assert [thread.error.code for thread in backlog if thread.error] == ["overloaded"]


def test_who_is_refused_and_comes_back_after_exactly_the_announced_time_is_served(stack):
    """Two run at a time: of four who wait the last is taken when two have run."""
    tenant = stack.tenant()
    client = tenant.sdk()
    streams = fill(client)
    backlog = queued(stack, tenant, client, 4)
    for _ in range(2):  # a rate is known once somebody has waited for a second and was taken
        wait_until(lambda: waiting(stack.gateway) == 2, what="two to be taken")
        backlog += queued(stack, tenant, client, 2)
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, max_tokens=TOKENS)
    refused_at, error = time.monotonic(), caught.value
    assert (error.status_code, error.code) == (503, "overloaded")
    announced_s = int(error.response.headers["retry-after-ms"]) / 1000
    assert announced_s <= int(error.response.headers["retry-after"]) < announced_s + 1
    assert RUNS_S <= announced_s <= 2 * 2 * RUNS_S
    time.sleep(max(0.0, refused_at + announced_s - time.monotonic()))
    assert chat(client, max_tokens=TOKENS).choices
    ended(backlog)
    for stream in streams:
        list(stream)


def test_who_hangs_up_while_waiting_leaves_the_queue(stack, promised_s):
    tenant = stack.tenant()
    client = tenant.sdk()
    received = len(stack.witness.received())
    streams = fill(client)
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.2), max_tokens=TOKENS)
    wait_until(lambda: waiting(stack.gateway) == 0, timeout_s=promised_s(0.5), what="an empty queue")
    assert int(stack.client.hget(redis_keys.replica_held_pages("rep_one"), "total")) == PAGES, "the streams still run"
    for stream in streams:
        list(stream)
    assert len(stack.witness.received()) - received == 2
    wait_until(tenant.holds_nothing)


def test_room_that_another_gateway_makes_is_seen(stack):
    other = stack.opened.enter_context(processes.gateway(stack.folder, stack.redis_url, "two", **SETTINGS))
    tenant = stack.tenant()
    elsewhere, here = tenant.sdk(other.url), tenant.sdk()
    streams = fill(elsewhere)
    began = time.monotonic()
    thread = Asked(here)
    for stream in streams:
        list(stream)
    freed = time.monotonic()
    ended([thread])
    assert thread.ended_at - freed < RUNS_S + 2
    assert thread.ended_at > began


def test_an_adapter_more_than_slots_waits_in_the_gateway_while_others_pass(stack):
    stack.witness.faults(output_tokens=20, token_interval_s=0.4)
    tenant = stack.tenant()
    client = tenant.sdk()
    routes = {name: stack.publisher.adapter(tenant.id, name) for name in ("red", "green", "blue")}
    wait_until(lambda: len(client.models.list().data) == 4, what="the adapters to be known")
    small_ones = {"max_tokens": 6}  # two pages each: slots are short, not pages
    streams = fill(client, 1, model="red", **small_ones) + fill(client, 1, model="green", **small_ones)
    stack.witness.faults(output_tokens=20, token_interval_s=0.01)
    third = queued(stack, tenant, client, 1, model="blue", **small_ones)
    passing = Asked(client, **small_ones)
    passing.join()
    assert passing.error is None
    assert not third[0].ended_at, "a base model's request needs no slot, and passes"
    for stream in streams:
        list(stream)
    ended(third)
    asked = [line["body"]["model"] for line in stack.witness.received()][-4:]
    assert asked == [newest_name(routes["red"]), newest_name(routes["green"]), "tiny-chat", newest_name(routes["blue"])]
