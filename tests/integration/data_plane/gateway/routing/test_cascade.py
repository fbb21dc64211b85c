"""A cascade at the gateway: which answer the caller gets, that both calls are metered and linked, and who pays."""

import contextlib

import httpx
import openai
import pytest

from control_plane.request_log.rows import rows_of
from core import redis_keys
from core.contracts.grants import Prices
from tests.conftest import wait_until
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.gateway.routing.test_groups import asked, known

SMALL, LARGE = "tiny-chat", "tiny-large"
UNSURE = {"logprob": -3.0}
PRICES = Prices(input_nanos=10, cached_input_nanos=10, output_nanos=600, kv_page_second_nanos=0)
BROKEN = {"status": 500}
LONG = {"output_tokens": 60, "token_interval_s": 0.01}


@pytest.fixture(scope="module")
def witnesses():
    """The first member, whose faults the tests set, and the last one."""
    return {"rep_one": {}, "rep_large": {"base_model": LARGE}}


def grouped(stack, *, bound: int = 100, **limits):
    tenant = stack.tenant(prices=PRICES, **limits)
    stack.publisher.base_model(tiny_route(LARGE))
    stack.publisher.group(tenant.id, "auto", "cascade", SMALL, LARGE, escalations_percent_max=bound)
    return tenant, known(tenant, "auto", LARGE)


def settled(tenant, count: int) -> list:
    wait_until(lambda: len(tenant.events()) >= count, what=f"{count} usage events")
    wait_until(tenant.holds_nothing, what="every hold to be given back")
    events = tenant.events()
    assert len(events) == count
    return events


def rows(stack, tenant) -> list:
    entries = stack.client.xrange(redis_keys.REQUEST_LOG)
    return [row for _, fields in entries for row in rows_of(fields) if row.tenant_id == tenant.id]


def journaled(stack) -> dict:
    return {name: run for witness in stack.witnesses.values() for name, run in witness.journal().items()}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("first", "last", "options", "whole", "streamed"),
    [
        ({}, {}, {}, [SMALL], [SMALL]),
        (UNSURE, {}, {}, [SMALL, LARGE], [SMALL, LARGE]),
        (UNSURE, BROKEN, {}, [SMALL], [SMALL]),
        (UNSURE | LONG, BROKEN, {}, [SMALL], [SMALL, SMALL]),
        (UNSURE, {"cut_after": 2}, {}, [SMALL, LARGE], [SMALL, LARGE]),
        (BROKEN, {}, {}, [LARGE], [LARGE]),
        ({"cut_after": 3}, {}, {}, [SMALL], [SMALL, LARGE]),
        (BROKEN, BROKEN, {}, [], []),
        (LONG, {}, {"timeout": 0.3}, [SMALL], [SMALL]),
    ],
    ids=[
        "kept", "unsure", "unsure and shown after all", "unsure and asked again", "the last dies",
        "the first fails", "the first dies", "both fail", "the caller hangs up",
    ],
)  # fmt: skip
def test_each_call_is_settled_once_by_its_tokens(stack, stream, first, last, options, whole, streamed):
    """Of a whole answer nothing is cut: it is judged at its end."""
    stack.witness.faults(**{"output_tokens": 8, **first})
    stack.witnesses["rep_large"].faults(**{"output_tokens": 8, **last})
    tenant, client = grouped(stack)
    before = journaled(stack)
    with contextlib.suppress(openai.APIError, httpx.RemoteProtocolError):
        answer = asked(client, stream=stream, **{"max_tokens": 100, **options})[0]
        assert not stream or list(answer)
    events = settled(tenant, len(streamed if stream else whole))
    assert [event.base_model for event in events] == (streamed if stream else whole)
    ran = {name: run.output_tokens for name, run in journaled(stack).items() if name not in before}
    assert {event.request_id: event.output_tokens for event in events} == ran
    spent = sum(10 * event.input_tokens + 600 * event.output_tokens for event in events)
    assert tenant.quota().get("spent_nanos", 0) == spent


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsure_first_answer_is_replaced_and_both_calls_are_charged_and_linked(stack, stream):
    stack.witness.faults(**UNSURE, **LONG)
    tenant, client = grouped(stack)
    answer, used, reason = asked(client, stream=stream, max_tokens=100)
    models = {part.model for part in answer} if stream else {answer.model}
    assert (models, used, reason) == ({LARGE}, LARGE, "escalated")
    events = {event.base_model: event for event in settled(tenant, 2)}
    first, second = events[SMALL], events[LARGE]
    assert first.outcome == ("client_gone" if stream else "done")
    assert first.output_tokens == stack.witness.journal()[first.request_id].output_tokens
    assert not stream or 16 <= first.output_tokens < 60, "a stream is aborted once it is judged"
    linked = {row.request_id: row.first_request_id for row in rows(stack, tenant)}
    assert linked == {first.request_id: None, second.request_id: first.request_id}


@pytest.mark.parametrize("stream", [False, True])
def test_the_platform_pays_for_the_first_call_where_the_plan_says_so(stack, stream):
    stack.witness.faults(**UNSURE, **LONG)
    tenant, client = grouped(stack, escalated_calls_paid_by="platform")
    answer = asked(client, stream=stream, max_tokens=100)[0]
    assert not stream or list(answer)
    events = {event.base_model: event for event in settled(tenant, 2)}
    first, second = events[SMALL], events[LARGE]
    assert (first.outcome, second.outcome) == ("yielded", "done")
    assert first.output_tokens == stack.witness.journal()[first.request_id.partition(":")[0]].output_tokens
    assert int(tenant.quota()["spent_nanos"]) == 10 * second.input_tokens + 600 * second.output_tokens


def test_above_its_bound_a_group_uses_its_last_member_alone_and_says_so(stack):
    stack.witness.faults(**UNSURE, output_tokens=2)
    _, client = grouped(stack, bound=2)
    reasons = [asked(client, max_tokens=4)[2] for _ in range(4)]
    assert reasons[:2] == ["escalated", "escalated"]
    assert reasons[2:] == ["bounded", "bounded"]
    assert stack.gateway.metric("tenora_gateway_escalations_total", '{cause="unsure"}') >= 2
