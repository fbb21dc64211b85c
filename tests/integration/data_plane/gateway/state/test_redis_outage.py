"""A gateway during Redis outages and data changes: it fails closed, loses nothing and follows published changes."""

import contextlib
import signal
import threading
import time

import httpx
import openai
import pytest
import redis

from core import api_keys, redis_acl, redis_keys
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.integration.data_plane.conftest import BRISK, chat, separate_stack

SETTINGS = {**BRISK, "snapshot_block_ms": 1000, "reserve_deadline_ms": 250}
"""With the default snapshot timing, for which the promises are made."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A stack whose Redis loses nothing."""
    with separate_stack(tmp_path_factory.mktemp("shared"), **SETTINGS) as running:
        yield running


@pytest.fixture
def own(tmp_path):
    """A stack whose Redis the test ends or empties."""
    with separate_stack(tmp_path, **SETTINGS) as running:
        yield running


def status_of(client: openai.OpenAI) -> int:
    try:
        chat(client, max_tokens=1)
    except openai.APIStatusError as error:
        return error.status_code
    return 200


def test_calls_to_a_hanging_redis_time_out(shared, promised_s):
    stack, valkey, _ = shared
    tenant = stack.tenant()
    client = tenant.sdk()
    chat(client)
    valkey.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert status_of(client) == 503
    assert time.monotonic() - began < promised_s(1)
    valkey.send_signal(signal.SIGCONT)
    wait_until(lambda: status_of(client) == 200)
    wait_until(tenant.holds_nothing)
    assert len(tenant.events()) == 2


def test_a_revoked_key_is_refused_within_two_seconds(shared, promised_s):
    stack, _, _ = shared
    tenant = stack.tenant()
    client = tenant.sdk()
    began = time.monotonic()
    stack.publisher.revoke(tenant.key)
    wait_until(lambda: status_of(client) == 401, timeout_s=2)
    assert time.monotonic() - began < promised_s(2)


def test_a_change_without_its_stream_entry_is_noticed_within_two_seconds(shared, promised_s):
    stack, _, _ = shared
    tenant = stack.tenant()
    client = tenant.sdk()
    began = time.monotonic()
    stack.publisher.generation += 5  # four changes are missing before this one
    stack.client.hset("tenora:snapshot", "generation", stack.publisher.generation)
    stack.publisher.revoke(tenant.key)
    wait_until(lambda: status_of(client) == 401, timeout_s=2)
    assert time.monotonic() - began < promised_s(2)


def test_a_gateway_that_was_stopped_refuses_until_it_has_the_change_that_it_missed(shared):
    """No publisher waits for it meanwhile. Redis continues later than the gateway, which first cannot catch up."""
    stack, valkey, _ = shared
    tenant = stack.tenant()
    client = tenant.sdk()
    answers: list[tuple[int, str | None]] = []

    def answer() -> tuple[int, str | None]:
        try:
            chat(client, max_tokens=1)
        except openai.APIStatusError as error:
            answers.append((error.status_code, error.code))
        else:
            answers.append((200, None))
        return answers[-1]

    assert answer() == (200, None)
    statuses = [redis_keys.gateway(each.decode()) for each in stack.client.zrange(redis_keys.GATEWAYS, 0, -1)]
    stack.gateway.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not any(map(stack.client.exists, statuses)), what="the end of its status")
        stack.client.client_kill_filter(user=redis_acl.GATEWAY)
        stack.publisher.revoke(tenant.key)
        valkey.send_signal(signal.SIGSTOP)
    finally:
        stack.gateway.process.send_signal(signal.SIGCONT)
    behind = (503, "gateway_behind")
    try:
        assert answer() == behind
    finally:
        valkey.send_signal(signal.SIGCONT)
    wait_until(lambda: answer()[0] == 401, what="the change")
    assert {each for each in answers[1:] if each[0] != 401} == {behind}


def test_a_rebuilt_snapshot_is_loaded_whole_within_two_seconds(shared, promised_s):
    stack, _, _ = shared
    tenant = stack.tenant()
    client = tenant.sdk()
    stack.client.hdel("tenora:snapshot:keys", stack.publisher.hashed(tenant.key))
    time.sleep(0.1)
    assert status_of(client) == 200  # nothing was published yet
    began = time.monotonic()
    stack.publisher.rebuild()
    wait_until(lambda: status_of(client) == 401, timeout_s=2)
    assert time.monotonic() - began < promised_s(2)


def test_a_gateway_without_a_published_snapshot_reports_that_it_is_not_ready(tmp_path):
    with processes.valkey(tmp_path) as valkey:
        publishing = threading.Timer(1.5, lambda: Publisher(valkey.client, processes.PEPPER).base_model())
        publishing.start()
        began = time.monotonic()
        with processes.gateway(tmp_path, valkey.url) as gateway:
            publishing.join()
            assert time.monotonic() - began > 1.5
            headers = {"Authorization": f"Bearer {api_keys.mint_key('live')}"}
            assert httpx.get(f"{gateway.url}/v1/models", headers=headers).status_code == 401


def test_several_workers_share_one_port_and_one_quota(shared):
    stack, _, _ = shared
    tenant = stack.tenant(requests_per_minute=20)
    with processes.gateway(stack.folder, stack.redis_url, "workers", workers=2, **BRISK) as gateway:
        served, started = 0, time.monotonic()
        for _ in range(30):
            with openai.OpenAI(base_url=gateway.url + "/v1", api_key=tenant.key, max_retries=0) as fresh:
                served += status_of(fresh) == 200
        back = int((time.monotonic() - started) / 3)  # a minute refills twenty
        assert 20 <= served <= 20 + back < 30


def test_during_a_redis_outage_no_request_is_admitted_and_running_ones_are_settled_afterwards(own, promised_s):
    stack, valkey, program = own
    tenant = stack.tenant()
    client = tenant.sdk()
    stack.witness.faults(token_interval_s=0.02, output_tokens=60)
    chunks: list[object] = []
    thread = threading.Thread(target=lambda: chunks.extend(chat(client, stream=True)))
    thread.start()
    wait_until(stack.witness.journal)
    valkey.send_signal(signal.SIGKILL)
    valkey.wait()
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client)
    assert (caught.value.status_code, caught.value.code) == (503, "quota_unavailable")
    assert "retry-after" in caught.value.response.headers
    assert time.monotonic() - began < promised_s(2)
    assert client.models.list().data  # the last snapshot still serves
    thread.join()  # the running stream continues to its end without Redis
    assert len(chunks) > 60
    assert httpx.get(f"{stack.gateway.url}/readyz").status_code == 503
    assert httpx.get(f"{stack.gateway.url}/livez").status_code == 200
    with processes.running(program):
        event = wait_until(lambda: _events(tenant), what="the late settlement")[0]
        journal = stack.witness.journal()[event.request_id]
        assert (event.input_tokens, event.output_tokens) == (journal.prompt_tokens, journal.output_tokens)
        wait_until(lambda: status_of(client) == 200, what="service to come back")
        assert len({event.request_id for event in _events(tenant)}) == len(_events(tenant))
        wait_until(tenant.holds_nothing)


def _events(tenant):
    with contextlib.suppress(redis.ConnectionError):
        return tenant.events()
    return []
