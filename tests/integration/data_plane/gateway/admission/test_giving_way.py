"""A batch request on a replica gives way to an interactive one that lacks pages: it ends there, waits again, and is
answered once and charged once. What was computed before costs nothing.
"""

import pytest
from openai import BadRequestError, OpenAI

from core.contracts.grants import Prices
from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat
from tests.integration.data_plane.gateway.admission.test_queueing import HELD, TOKENS, Asked, finish, reached, waiting

PAGES = 8  # two requests of 26 + 33 tokens
PRICES = Prices(input_nanos=10, cached_input_nanos=10, output_nanos=600, kv_page_second_nanos=0)
BATCH = {"x-tier": "batch"}


@pytest.fixture(scope="module")
def witnesses():
    """One replica of one slot and pages for two requests."""
    return {"rep_one": {"pages": PAGES, "slots": 1}}


@pytest.fixture(scope="module")
def gateway_settings():
    long = ("queue_wait_s", "queue_overdue_after_s", "inter_token_s", "first_byte_s", "engine_stalled_s")
    return dict.fromkeys(long, 60)


@pytest.fixture
def stack(stack):
    stack.witness.faults(**HELD)
    yield stack
    wait_until(lambda: stack.held_pages() == 0)


def running(stack, tenant, client: OpenAI, count: int, **options: object) -> list[Asked]:
    """Requests that the replica has begun, and holds."""
    since = len(stack.witness.received())
    asked = [Asked(client, **options) for _ in range(count)]
    reached(stack.witness, since, count)
    return asked


def test_the_newest_batch_request_gives_way_and_both_are_answered_and_charged_once(stack):
    tenant = stack.tenant(prices=PRICES)
    client, since = tenant.sdk(), len(stack.witness.received())
    first = running(stack, tenant, client, 1, content="older", extra_headers=BATCH)
    newest = running(stack, tenant, client, 1, content="newest", extra_headers=BATCH)
    chat = Asked(client, content="chat")
    bodies = reached(stack.witness, since, 3)
    assert [body["messages"][0]["content"] for body in bodies] == ["older", "newest", "chat"]
    wait_until(lambda: waiting(stack.gateway) == 1, what="the newest to wait again")
    assert stack.gateway.metric("tenora_gateway_yielded_requests_total") == 1
    finish(stack.witness, [], [])
    stack.witness.release(2)
    for asked in (*first, *newest, chat):
        asked.join()
        assert asked.error is None
    wait_until(tenant.holds_nothing, what="every hold to be given back")
    events = tenant.events()
    yielded = [event for event in events if event.outcome == "yielded"]
    answered = [event for event in events if event.outcome != "yielded"]
    assert [event.service_class for event in answered].count("batch") == 2
    assert len({event.request_id for event in answered}) == len(answered) == 3
    assert {event.outcome for event in answered} == {"done"}
    (gone,) = yielded
    assert gone.request_id.removesuffix(":yielded1") in {event.request_id for event in answered}
    spent = sum(10 * event.input_tokens + 600 * event.output_tokens for event in answered)
    assert int(tenant.quota()["spent_nanos"]) == spent
    assert int(tenant.quota()["concurrent"]) == 0


def test_a_stream_whose_answer_has_begun_does_not_give_way(stack):
    tenant = stack.tenant(prices=PRICES)
    client = tenant.sdk()
    streams = [
        client.chat.completions.create(
            model="tiny-chat", messages=[{"role": "user", "content": "hi"}], max_tokens=TOKENS, stream=True,
            extra_headers=BATCH,
        )
        for _ in range(2)
    ]  # fmt: skip
    for stream in streams:
        next(iter(stream))
    before = stack.gateway.metric("tenora_gateway_yielded_requests_total")
    chat = Asked(client, content="chat")
    wait_until(lambda: waiting(stack.gateway) == 1, what="the chat to wait")
    finish(stack.witness, streams, [chat])
    assert stack.gateway.metric("tenora_gateway_yielded_requests_total") == before


def test_the_answer_names_the_class_that_applied(stack):
    stack.witness.faults()
    client = stack.tenant().sdk()
    for asked, applied in (("batch", "batch"), ("near_real_time", "near_real_time"), (None, "interactive")):
        headers = {} if asked is None else {"x-tier": asked}
        raw = client.chat.completions.with_raw_response.create(
            model="tiny-chat", messages=[{"role": "user", "content": "hi"}], max_tokens=4, extra_headers=headers
        )
        assert raw.headers["x-tier"] == applied


def test_an_unknown_class_is_refused_by_name_and_nothing_runs(stack):
    tenant = stack.tenant()
    with pytest.raises(BadRequestError) as refused:
        chat(tenant.sdk(), extra_headers={"x-tier": "gold"})
    assert (refused.value.code, refused.value.param) == ("invalid_value", "x-tier")
    assert "near_real_time, interactive, batch" in str(refused.value)
    assert tenant.holds_nothing()
    assert not tenant.events()
