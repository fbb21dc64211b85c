"""Several small replicas: waiting for pages, retrying on another, draining, and which of them may be chosen."""

import contextlib
import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import openai
import pytest

from core import redis_keys
from core.contracts.replicas import ReplicaStatus
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.quota.redis_commands import wait_for_commands
from tests.integration.data_plane.conftest import BRISK, Stack, chat, emptied

PAGES = 8  # a request of 26 + 33 tokens holds 4


@pytest.fixture(scope="module")
def pair(redis_server, tmp_path_factory):
    """Two replicas of eight pages each, and a gateway."""
    folder = tmp_path_factory.mktemp("pair")
    with contextlib.ExitStack() as up:
        client = up.enter_context(emptied(redis_server))
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        one, two = (
            up.enter_context(processes.witness(folder, redis_server, f"rep_{name}", pages=PAGES))
            for name in ("one", "two")
        )
        settings = {**BRISK, "queue_requests_max": 3, "queue_wait_s": 4, "inter_token_s": 60, "first_byte_s": 60}
        gateway = up.enter_context(processes.gateway(folder, redis_server, **settings))
        yield Stack(client, publisher, one, gateway, folder, redis_server, contextlib.ExitStack()), two


@pytest.fixture
def replicas(pair):
    stack, two = pair
    for witness in (stack.witness, two):
        witness.faults()
    wait_until(lambda: _held(stack) == 0, what="pages to be released")
    with stack.opened:
        yield stack, two


def _held(stack: Stack) -> int:
    return sum(
        int(stack.client.hget(redis_keys.replica_held_pages(name), "total") or 0) for name in ("rep_one", "rep_two")
    )


def hold(*witnesses: processes.WitnessProcess) -> None:
    """Each run stops after its first token until it is released or aborted."""
    for witness in witnesses:
        witness.faults(held=True, output_tokens=33, token_interval_s=0)


def running(client: openai.OpenAI):
    stream = chat(client, stream=True, max_tokens=33)
    next(iter(stream))
    return stream


def test_requests_spread_over_free_pages_and_then_wait(replicas):
    stack, two = replicas
    hold(stack.witness, two)
    tenant = stack.tenant()
    client = tenant.sdk()
    streams = [running(client) for _ in range(4)]
    assert _held(stack) == 2 * PAGES
    with ThreadPoolExecutor(1) as caller:
        waits = caller.submit(chat, client, max_tokens=33)
        wait_until(lambda: stack.gateway.metric("tenora_gateway_waiting_requests") == 1, what="the fifth to wait")
        for witness in (stack.witness, two):
            witness.faults()
            witness.release(2)
        assert waits.result().choices
    for stream in streams:
        list(stream)
    assert {event.replica_id for event in tenant.events()} == {"rep_one", "rep_two"}


def test_a_request_no_replica_can_hold_is_refused(replicas):
    client = replicas[0].tenant().sdk()
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, max_tokens=200)
    assert caught.value.code == "request_exceeds_replica"


@pytest.mark.parametrize(
    ("faults", "stream"),
    [
        ({"status": 500}, False),
        ({"status": 500}, True),
        ({"status": 404}, False),
        ({"cut_before": True}, True),
        ({"error_before": True}, True),
    ],
    ids=str,
)
def test_a_replicas_failure_before_its_first_token_is_not_seen_by_the_caller(replicas, faults, stream):
    stack, two = replicas
    tenant = stack.tenant()
    client = tenant.sdk()
    for witness in (stack.witness, two):
        witness.faults(times=1, **faults)
    # The replica chosen first fails, then the other one too. The caller sees only that.
    with pytest.raises(openai.InternalServerError):
        chat(client, stream=stream, max_tokens=4)
    stack.witness.faults(times=1, **faults)
    for _ in range(4):
        answer = chat(client, stream=stream, max_tokens=4)
        assert list(answer) if stream else answer.choices
    assert len(tenant.events()) == 4
    wait_until(tenant.holds_nothing)
    assert _held(stack) == 0


def test_a_request_moves_from_a_failing_replica_to_another(replicas):
    stack, two = replicas
    tenant = stack.tenant()
    client = tenant.sdk()
    for broken, good in ((stack.witness, two), (two, stack.witness)):
        broken.faults(status=500)
        good.faults()
        assert chat(client, max_tokens=4).choices
        assert list(chat(client, max_tokens=4, stream=True))
    assert len(tenant.events()) == 4
    wait_until(tenant.holds_nothing)


@pytest.mark.parametrize(("prefilled", "stream"), [(1_000_000, False), (None, True)], ids=["a report", "no report"])
def test_a_prompt_that_is_abandoned_on_a_second_replica_is_charged_once(replicas, stream, prefilled):
    stack, two = replicas
    tenant = stack.tenant()
    client = tenant.sdk()
    prompt_tokens = chat(client, max_tokens=4).usage.prompt_tokens
    retried, one = False, stack.witness
    # Each replica fails twice in a row, so that the failing one is chosen first soon, whether choices alternate or not.
    for number, (broken, good) in enumerate([(one, two), (one, two), (two, one), (two, one)] * 3, start=2):
        received = len(broken.received())
        broken.faults(status=500)
        good.faults(hang=True, prefilled=prefilled)
        with pytest.raises(openai.APITimeoutError):
            list(chat(client.with_options(timeout=1), max_tokens=4, stream=stream))
        event = wait_until(lambda: len(events := tenant.events()) == number and events[-1], what="a usage event")  # noqa: B023
        assert (event.outcome, event.input_tokens) == ("client_gone", prompt_tokens)
        assert event.aborted_prefill_tokens == prompt_tokens
        if retried := len(broken.received()) > received:
            break
    assert retried, "the replica that fails was chosen first at least once"
    wait_until(tenant.holds_nothing)


def test_when_all_replicas_fail_the_caller_gets_the_gateways_own_error(replicas):
    stack, two = replicas
    tenant = stack.tenant()
    client = tenant.sdk()
    for witness in (stack.witness, two):
        witness.faults(status=500)
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, max_tokens=4)
    assert (caught.value.status_code, caught.value.code) == (502, "replica_failed")
    assert "secret" not in caught.value.response.text
    for witness in (stack.witness, two):
        witness.faults(status=400)
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, max_tokens=4)
    assert refused.value.code == "request_refused"
    assert "secret" not in refused.value.response.text
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []
    assert tenant.quota().get("month_used", 0) == 0


def test_replicas_that_drain_or_stop_their_heartbeat_are_not_chosen(replicas):
    stack, _ = replicas
    client = stack.tenant().sdk()
    with counting_listener() as (url, connections):
        unused_replica = ReplicaStatus(
            id="rep_unused", url=url, base_model="tiny-chat", state="ready", boot_id="b", block_tokens=16,
            pages_total=10_000, pages_free=10_000, slots=1, running_requests=0, waiting_requests=0,
            heartbeat_ms=1,
        )  # fmt: skip
        for state in ("draining", "unhealthy", "starting"):
            _publish(stack, msgspec.structs.replace(unused_replica, state=state))
            wait_for_commands(stack.client, f"ZRANGE {redis_keys.REPLICAS}")  # the gateway has read it by then
            assert chat(client, max_tokens=4).choices
        time.sleep(BRISK["replica_stale_s"])
        _publish(stack, unused_replica)
        wait_for_commands(stack.client, f"ZRANGE {redis_keys.REPLICAS}")  # ready, but its heartbeat has stopped
        assert chat(client, max_tokens=4).choices
        assert connections == []
        _publish(stack, msgspec.structs.replace(unused_replica, heartbeat_ms=2))
        prompts = itertools.count()  # each prefers a different replica
        wait_until(lambda: chat(client, f"{next(prompts)}", max_tokens=1).choices and connections, what="its turn")
        stack.client.delete(redis_keys.replica("rep_unused"))
        stack.client.zrem(redis_keys.REPLICAS, "rep_unused")
        wait_for_commands(stack.client, f"ZRANGE {redis_keys.REPLICAS}")
        connected = len(connections)
        assert chat(client, max_tokens=4).choices
        assert len(connections) == connected


@contextlib.contextmanager
def counting_listener():
    """A listener that notes each connection and cuts it."""
    connections: list[tuple] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, peer = listener.accept()
                    connections.append(peer)
                    connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _publish(stack: Stack, status: ReplicaStatus) -> None:
    stack.client.set(redis_keys.replica(status.id), msgspec.json.encode(status))
    stack.client.zadd(redis_keys.REPLICAS, {status.id: status.heartbeat_ms})
