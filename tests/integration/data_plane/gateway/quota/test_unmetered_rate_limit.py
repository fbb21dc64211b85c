"""Requests that use no quota (rejected requests, token counts, model lists) are rate-limited per tenant."""

import time

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

PER_SECOND = 4
BURST = 5 * PER_SECOND


@pytest.fixture(scope="module")
def gateway_settings():
    return {"tenant_unmetered_requests_per_s": PER_SECOND}


@pytest.fixture
def ask(stack, tenant):
    """Sends a chat, or another request, unchanged."""
    tenant.sdk()
    with httpx.Client(base_url=stack.gateway.url, timeout=20) as client:

        def send(method: str = "POST", path: str = "/v1/chat/completions", **body: object) -> httpx.Response:
            wanted = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], **body}
            headers = {"authorization": f"Bearer {tenant.key}"}
            return client.request(method, path, json=wanted if method == "POST" else None, headers=headers)

        yield send


MALFORMED, COUNTED = ("POST", "/v1/chat/completions"), ("POST", "/v1/tokenize")


@pytest.mark.parametrize("wanted", [MALFORMED, COUNTED, ("GET", "/v1/models"), ("GET", "/v1/quota")], ids=str)
def test_a_tenant_over_the_unmetered_rate_gets_a_429_and_is_served_after_waiting(ask, stack, wanted, promised_s):
    other = stack.tenant().sdk()
    body = {"temperature": "hot"} if wanted == MALFORMED else {}
    answers = [ask(*wanted, **body)]
    while answers[-1].status_code != 429:
        assert len(answers) < 3 * BURST
        answers.append(ask(*wanted, **body))
    refused = answers.pop()
    assert {answer.status_code for answer in answers} == {400 if wanted == MALFORMED else 200}
    assert refused.json()["error"]["code"] == "too_many_refusals"
    assert "retry-after" in refused.headers
    assert chat(other, max_tokens=1).choices
    wait_until(lambda: ask().status_code == 200, timeout_s=promised_s(3), what="the tenant to be served again")


def test_an_exhausted_minute_is_refused_by_redis_a_few_times_and_then_locally(stack):
    tenant = stack.tenant(requests_per_minute=1)
    client = tenant.sdk()
    codes, began = [], time.monotonic()
    while codes[-1:] != ["too_many_refusals"]:
        assert len(codes) <= BURST + PER_SECOND * (time.monotonic() - began) + 2
        try:
            chat(client, max_tokens=1)
        except openai.RateLimitError as error:
            codes.append(error.code)
    assert {"rate_limit_exceeded", "too_many_refusals"} == set(codes)


def test_served_requests_do_not_count_as_unmetered(stack, tenant):
    client = tenant.sdk()
    for _ in range(BURST + 10):
        chat(client, max_tokens=1)
