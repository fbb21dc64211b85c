"""Two small replicas: what one of them fails to serve is retried on the other, and what none can hold is refused."""

import openai
import pytest

from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

PAGES = 8  # a request of 26 + 33 tokens holds 4


@pytest.fixture(scope="module")
def witnesses():
    return {name: {"pages": PAGES} for name in ("rep_one", "rep_two")}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"inter_token_s": 60, "first_byte_s": 60}


def test_a_request_no_replica_can_hold_is_refused(stack):
    client = stack.tenant().sdk()
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
def test_a_replicas_failure_before_its_first_token_is_not_seen_by_the_caller(stack, faults, stream):
    one, two = stack.witnesses.values()
    tenant = stack.tenant()
    client = tenant.sdk()
    for witness in (one, two):
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
    assert stack.held_pages() == 0


@pytest.mark.parametrize(("prefilled", "stream"), [(1_000_000, False), (None, True)], ids=["a report", "no report"])
def test_a_prompt_that_is_abandoned_on_a_second_replica_is_charged_once(stack, stream, prefilled):
    one, two = stack.witnesses.values()
    tenant = stack.tenant()
    client = tenant.sdk()
    prompt_tokens = chat(client, max_tokens=4).usage.prompt_tokens
    retried = False
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


def test_when_all_replicas_fail_the_caller_gets_the_gateways_own_error(stack):
    one, two = stack.witnesses.values()
    tenant = stack.tenant()
    client = tenant.sdk()
    for witness in (one, two):
        witness.faults(status=500)
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, max_tokens=4)
    assert (caught.value.status_code, caught.value.code) == (502, "replica_failed")
    assert "secret" not in caught.value.response.text
    for witness in (one, two):
        witness.faults(status=400)
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, max_tokens=4)
    assert refused.value.code == "request_refused"
    assert "secret" not in refused.value.response.text
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []
    assert tenant.quota().get("month_used", 0) == 0
