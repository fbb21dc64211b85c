"""Idempotency-Key: one run, one charge and the same answer again. Where that cannot be guaranteed, there is no second
run.
"""

import signal
import threading
import time

import httpx
import openai
import pytest

from core import api_keys, redis_keys
from core.ids import new_id
from core.line_credential import HEADER, LineCredential, sign_line
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.processes import PEPPER
from tests.integration.data_plane.conftest import BRISK, chat

BODY = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"idempotency_answer_max_bytes": 4096, "idempotency_answers_max": 3, "idempotency_lease_s": 3}


@pytest.fixture
def post(stack, tenant):
    """Posts a chat with a key on a connection that httpx manages."""
    tenant.sdk()
    with httpx.Client(base_url=stack.gateway.url, timeout=20) as client:

        def send(name: str, *, key: str | None = None, path: str = "/v1/chat/completions", **fields) -> httpx.Response:
            headers = {"authorization": f"Bearer {key or tenant.key}", "idempotency-key": name}
            return client.post(path, json={**BODY, **fields}, headers=headers)

        yield send


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_request_gets_the_same_answer_and_one_charge(post, tenant, stream):
    first, again = [post("order-1", stream=stream, user="me") for _ in range(2)]
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    tenant.event()
    assert len(tenant.events()) == 1
    assert first.content.endswith(b"data: [DONE]\n\n") is stream


def test_a_message_is_replayed_in_anthropics_format(post, tenant):
    first, again = [post("m-1", path="/v1/messages", max_tokens=5) for _ in range(2)]
    assert again.content == first.content
    assert again.json()["type"] == "message"
    assert len(tenant.events()) == 1


def test_the_same_key_with_another_body_or_path_is_refused(post, stack, tenant):
    before = len(stack.witness.received())
    assert post("order-2").status_code == 200
    for refused in (post("order-2", temperature=1), post("order-2", path="/v1/messages", max_tokens=5)):
        assert refused.status_code == 422
    assert post("order-2", temperature=1).json()["error"]["code"] == "idempotency_key_reused"
    assert_only_the_first_ran(stack, tenant, before)


def assert_only_the_first_ran(stack, tenant, before: int) -> None:
    """Only one request reached the engine and the bill; the refused ones reached neither."""
    (received,) = stack.witness.received()[before:]
    assert [event.request_id for event in tenant.events()] == [received["received"]]
    wait_until(tenant.holds_nothing)
    assert tenant.quota()["month_used"] == tenant.event().input_tokens + tenant.event().output_tokens


def test_a_second_request_during_the_first_is_asked_to_wait(post, stack, tenant):
    stack.witness.faults(token_interval_s=0.2, output_tokens=20)
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(post("slow")))
    before = len(stack.witness.received())
    first.start()
    wait_until(lambda: len(stack.witness.received()) > before)
    headers = {"authorization": f"Bearer {tenant.key}", "idempotency-key": "slow"}
    second = httpx.post(f"{stack.gateway.url}/v1/chat/completions", json=BODY, headers=headers)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "request_in_progress")
    assert second.headers["retry-after"] == "1"
    assert second.headers.get("x-should-retry") != "false"
    client = openai.OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=tenant.key, max_retries=10)
    with client:
        patient = chat(client, extra_headers={"idempotency-key": "slow"})  # the SDK retries by itself
    first.join()
    assert patient.id == answers[0].json()["id"]
    assert_only_the_first_ran(stack, tenant, before)


def test_keys_belong_to_an_api_key(post, stack, tenant):
    another = stack.publisher.key(tenant.id)
    wait_until(lambda: post("probe", key=another).status_code == 200)
    first, second = post("mine"), post("mine", key=another)
    assert first.json()["id"] != second.json()["id"]
    assert "idempotent-replayed" not in second.headers


def test_a_failed_request_may_be_sent_again(post, stack, tenant):
    stack.witness.faults(status=500)
    assert post("again").status_code == 502
    stack.witness.faults()
    answer = post("again")
    assert answer.status_code == 200
    assert "idempotent-replayed" not in answer.headers
    assert tenant.event().outcome == "done"


def test_a_caller_that_disconnected_may_send_the_request_again(post, stack, tenant):
    stack.witness.faults(token_interval_s=0.05, output_tokens=200)
    headers = {"authorization": f"Bearer {tenant.key}", "idempotency-key": "hung"}
    with httpx.stream(
        "POST", f"{stack.gateway.url}/v1/chat/completions", json={**BODY, "stream": True}, headers=headers
    ) as begun:
        next(begun.iter_bytes())
    wait_until(tenant.events)
    stack.witness.faults()
    wait_until(lambda: post("hung", stream=True).status_code == 200)
    assert [event.outcome for event in tenant.events()] == ["client_gone", "done"]


def test_an_answer_that_is_too_large_is_not_stored_and_not_run_again(post, stack, tenant):
    stack.witness.faults(output_tokens=900, token_interval_s=0)
    first, again = [post("large", max_tokens=900, stream=True) for _ in range(2)]
    assert len(first.content) > 4096
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotent_answer_not_kept")
    assert again.headers["x-should-retry"] == "false"
    assert len(tenant.events()) == 1


def test_answers_kept_per_tenant_are_bounded_and_the_oldest_go_first(post, stack, tenant):
    ids = [post(f"n-{number}").json()["id"] for number in range(4)]
    assert post("n-3").json()["id"] == ids[3]
    assert stack.client.zcard(redis_keys.idempotent_answers(tenant.id)) == 3
    assert post("n-0").json()["id"] != ids[0]


def test_a_key_in_flight_is_kept_while_its_request_runs_and_no_longer(post, stack, tenant):
    stack.witness.faults(token_interval_s=0.5, output_tokens=9)
    running = threading.Thread(target=lambda: post("long"))
    running.start()
    (name,) = wait_until(lambda: stack.client.keys(redis_keys.idempotent_request(tenant.id, "*")), what="a claim")
    lives = []
    while running.is_alive():
        lives.append(stack.client.pttl(name))
        running.join(0.2)
    assert min(lives) > 500  # a lease of three seconds, through more than four
    assert stack.client.pttl(name) > 80_000_000  # a day, once the answer is stored


def test_a_killed_gateways_key_is_free_after_its_lease(post, stack, tenant):
    stack.witness.faults(token_interval_s=0.1, output_tokens=400)
    headers = {"authorization": f"Bearer {tenant.key}", "idempotency-key": "orphan"}
    settings = {**BRISK, "idempotency_lease_s": 3}
    with processes.gateway(stack.folder, stack.redis_url, "doomed", **settings) as doomed:
        tenant.sdk(doomed.url)
        url = f"{doomed.url}/v1/chat/completions"
        with httpx.stream("POST", url, json={**BODY, "stream": True}, headers=headers) as begun:
            next(begun.iter_bytes())
            doomed.process.send_signal(signal.SIGKILL)
    stack.witness.faults()
    assert post("orphan", stream=True).json()["error"]["code"] == "request_in_progress"
    answer = wait_until(lambda: (tried := post("orphan", stream=True)).status_code == 200 and tried, timeout_s=8)
    assert "idempotent-replayed" not in answer.headers
    assert post("orphan", stream=True).content == answer.content


def test_a_keyed_request_does_not_run_without_redis(post, stack, tenant):
    before = len(stack.witness.received())
    stack.client.execute_command("CLIENT", "PAUSE", "2500", "ALL")
    refused = post("blind")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "idempotency_unavailable")
    assert len(stack.witness.received()) == before
    wait_until(lambda: post("blind-2").status_code == 200)
    assert len(tenant.events()) == 1


def test_a_key_claimed_after_its_caller_was_refused_is_released(post, stack, tenant):
    """Redis ran the claim after its deadline, and no gateway renews or answers it."""
    assert post("before").status_code == 200
    stack.client.execute_command("CLIENT", "PAUSE", 2500, "WRITE")
    refused = post("late")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "idempotency_unavailable")
    stack.client.set("the pause", "is over")  # waits for it like the claim
    stack.client.delete("the pause")
    wait_until(lambda: post("late").status_code == 200, timeout_s=2)  # the claim's own lease is longer


def test_a_replayed_answer_uses_one_request_of_the_minute_and_nothing_else(stack):
    tenant = stack.tenant(requests_per_minute=3, tokens_per_month=100_000)
    tenant.sdk()
    headers = {"authorization": f"Bearer {tenant.key}", "idempotency-key": "mine"}
    url = f"{stack.gateway.url}/v1/chat/completions"
    answers = [httpx.post(url, json={**BODY, "max_tokens": 2}, headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3].json()["error"]["code"] == "rate_limit_exceeded"
    assert "retry-after-ms" in answers[3].headers
    event = tenant.event()
    assert tenant.quota()["month_used"] == event.input_tokens + event.output_tokens
    assert tenant.holds_nothing()


@pytest.fixture
def send_line(stack, tenant):
    """Sends a chat as the batch process does, for the tenant's key."""
    tenant.sdk()
    with httpx.Client(base_url=stack.gateway.url, timeout=20) as client:

        def send(name: str, *, only_stored: bool = False, **fields) -> httpx.Response:
            key_hash = api_keys.hash_key(tenant.key, PEPPER.encode())
            line = LineCredential(key_hash, new_id("req"), only_stored=only_stored)
            shown = sign_line(line, PEPPER.encode(), expires_at_s=int(time.time()) + 60)
            return client.post(
                "/v1/chat/completions", json={**BODY, **fields}, headers={HEADER: shown, "idempotency-key": name}
            )

        yield send


def test_a_line_that_is_only_asked_for_does_not_run(send_line, stack, tenant):
    before = len(stack.witness.received())
    refused = send_line("batch_1:1", only_stored=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "request_not_run")
    assert refused.headers["x-should-retry"] == "false"
    answer = send_line("batch_1:1")
    asked = send_line("batch_1:1", only_stored=True)
    assert (answer.status_code, asked.content) == (200, answer.content)
    assert_only_the_first_ran(stack, tenant, before)


def test_an_answer_to_a_line_that_is_too_large_to_store_is_forgotten(send_line, stack):
    stack.witness.faults(output_tokens=900, token_interval_s=0)
    answer = send_line("batch_2:1", max_tokens=900, logprobs=True)
    assert (answer.status_code, len(answer.content) > 4096) == (200, True)

    def code() -> str:
        return send_line("batch_2:1", max_tokens=900, logprobs=True, only_stored=True).json()["error"]["code"]

    wait_until(lambda: code() == "request_not_run")
