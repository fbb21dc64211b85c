"""A group of the rule ``overflow`` with a full best member: requests that wait, that a smaller member answers, and
that are refused.
"""

import time

import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.gateway.admission.test_queueing import HELD, TOKENS, Asked, fill, finish, waiting
from tests.integration.data_plane.gateway.routing.test_groups import asked, known

SMALL, LARGE = "tiny-small", "tiny-chat"
PATIENCE_MS = 200
NO_FALLBACK = {"allow_fallback": False}


@pytest.fixture(scope="module")
def witnesses():
    """The best member has pages for two requests, and the small one has room."""
    return {"rep_one": {"pages": 8, "slots": 2}, "rep_small": {"base_model": SMALL}}


@pytest.fixture(scope="module")
def gateway_settings():
    return dict.fromkeys(
        ("queue_wait_s", "queue_overdue_after_s", "inter_token_s", "first_byte_s", "engine_stalled_s"), 60
    )


@pytest.fixture
def stack(stack):
    stack.publisher.base_model(tiny_route(SMALL, context_tokens=40))
    stack.witness.faults(**HELD)
    yield stack
    wait_until(lambda: stack.held_pages() == 0)


def grouped(stack, **limits: int) -> openai.OpenAI:
    """The client of a tenant whose default group is the two."""
    tenant = stack.tenant(**limits)
    stack.publisher.group(tenant.id, "auto", "overflow", SMALL, LARGE, patience_ms=PATIENCE_MS)
    return known(tenant, "auto", SMALL)


@pytest.mark.parametrize("stream", [False, True])
def test_where_the_wait_is_too_long_a_smaller_member_answers_and_says_so(stack, stream):
    client = grouped(stack)
    streams = fill(client)
    answer, used, reason = asked(client, max_tokens=4, stream=stream)
    assert (used, reason) == (SMALL, "overflow")
    assert {part.model for part in answer} == {SMALL} if stream else answer.model == SMALL
    finish(stack.witness, streams)
    answer, used, reason = asked(client, max_tokens=4)
    assert (answer.model, used, reason) == (LARGE, LARGE, "best")


def test_a_caller_that_allows_no_fallback_is_refused_in_time(stack):
    client = grouped(stack)
    streams = fill(client)
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as refused:
        asked(client, max_tokens=4, extra_body=NO_FALLBACK)
    assert (refused.value.status_code, refused.value.code) == (503, "overloaded")
    assert time.monotonic() - began < 30, "the queue itself would let it wait for 60 s"
    finish(stack.witness, streams)


def test_a_priority_plan_waits_for_the_best_member(stack):
    client = grouped(stack, tier=0)
    streams = fill(client)
    patient = Asked(client, model="auto")
    wait_until(lambda: waiting(stack.gateway) == 1, what="the request to wait")
    _, used, _ = asked(grouped(stack), max_tokens=4)
    assert used == SMALL, "the patience of a request that came later has ended"
    assert waiting(stack.gateway) == 1
    finish(stack.witness, streams, [patient])
    assert patient.answer.model == LARGE


def test_a_member_that_cannot_hold_the_request_does_not_get_it(stack):
    client = grouped(stack)
    streams = fill(client)
    with pytest.raises(openai.InternalServerError) as refused:
        asked(client, max_tokens=TOKENS)
    assert refused.value.code == "overloaded"
    finish(stack.witness, streams)


@pytest.mark.parametrize("value", ["no", 0])
def test_allow_fallback_is_a_boolean(stack, value):
    with pytest.raises(openai.BadRequestError) as refused:
        asked(grouped(stack), extra_body={"allow_fallback": value})
    assert refused.value.param == "allow_fallback"
