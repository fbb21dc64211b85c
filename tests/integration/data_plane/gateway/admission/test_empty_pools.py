"""Requests for a base model without a replica, at a gateway that reads what the fleet process wants."""

import contextlib
import threading

import msgspec
import openai
import pytest

from core import redis_keys
from core.contracts.demand import GatewayDemand
from core.contracts.fleet import WantedPool, WantedRevision
from tests.conftest import wait_until
from tests.fixtures.control_plane.registry_rows import beat
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.conftest import chat

PATIENCE_S = 8


@pytest.fixture(scope="module")
def witnesses():
    """It serves, and nothing says so before a test does."""
    return {"rep_one": {"silent": True}}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"queue_wait_s": PATIENCE_S}


@pytest.fixture(autouse=True)
def no_replica_is_left(stack):
    yield
    stack.client.delete(redis_keys.FLEET_WANTED, redis_keys.REPLICAS, redis_keys.replica("rep_one"))
    client = stack.tenant().sdk()
    wait_until(lambda: not serves(client), what="the gateway to see that no replica is left")


def want(stack, *, start_s: int, replicas: int = 1, **changes) -> None:
    now_ms = stack.client.time()[0] * 1000
    pool = WantedPool(
        pool="chat",
        revisions=(WantedRevision(number=1, replicas=replicas, environment={}),) if replicas else (),
        **{"base_model": "tiny-chat", "rank_max": 16, "replicas_max": 3, "grew_ms": now_ms} | changes,
        start_s=start_s,
    )
    stack.client.hset(redis_keys.FLEET_WANTED, "chat", msgspec.json.encode(pool))


def waiting(stack, base_model: str = "tiny-chat") -> int:
    """The requests for a base model that gateways report."""
    keys = [redis_keys.gateway_demand(each.decode()) for each in stack.client.zrange(redis_keys.GATEWAYS, 0, -1)]
    reports = [msgspec.json.decode(value, type=GatewayDemand) for value in stack.client.mget(keys) if value]
    return sum(demand.requests for report in reports for demand in report.waiting if demand.base_model == base_model)


def serves(client: openai.OpenAI) -> bool:
    with contextlib.suppress(openai.InternalServerError):
        return bool(chat(client, max_tokens=1))
    return False


def refusal(stack, model: str = "tiny-chat") -> openai.APIStatusError:
    client = stack.tenant().sdk()
    wait_until(lambda: model in {each.id for each in client.models.list().data}, what="the base model")
    with pytest.raises(openai.APIStatusError) as caught:
        chat(client, model=model, max_tokens=8)
    return caught.value


def test_requests_wait_for_the_first_replica_and_are_all_answered(stack):
    client, answers = stack.tenant().sdk(), []
    want(stack, start_s=1)
    asked = [threading.Thread(target=lambda: answers.append(chat(client, max_tokens=8))) for _ in range(5)]
    for each in asked:
        each.start()
    wait_until(lambda: waiting(stack) >= len(asked), what="the gateway to report them")
    beat(stack.client, "tiny-chat", replica_id="rep_one", url=stack.witness.url)
    for each in asked:
        each.join()
    assert [answer.usage.completion_tokens > 0 for answer in answers] == [True] * len(asked)


@pytest.mark.parametrize(("replicas", "expected_s"), [(0, 43), (2, 40)])
def test_a_start_that_takes_longer_than_a_request_may_wait_is_named_at_once_and_still_reported(
    stack, replicas, expected_s
):
    model = f"lonely-{replicas}"
    stack.publisher.base_model(tiny_route(model))
    want(stack, start_s=40, replicas=replicas, base_model=model)
    error = refusal(stack, model)
    assert (error.status_code, error.code) == (503, "no_replica")
    assert expected_s - 3 <= int(error.response.headers["retry-after"]) <= expected_s
    wait_until(lambda: waiting(stack, model) == 1, what="the refused request in the report")


def test_a_replica_that_does_not_come_in_time_ends_the_wait(stack):
    want(stack, start_s=1)
    error = refusal(stack)
    assert (error.status_code, error.code) == (503, "no_replica")
    assert "has no replica now" in str(error)


@pytest.mark.parametrize("other", [{"base_model": "another"}, {"replicas_max": 0}])
def test_no_request_waits_for_a_pool_that_cannot_serve_it(stack, other):
    want(stack, start_s=1, **other)
    error = refusal(stack)
    assert (error.code, error.response.headers["retry-after"]) == ("no_replica", "2")
    assert "is ready" in str(error)


def test_a_tenant_over_its_limits_does_not_wait_and_starts_nothing(stack):
    want(stack, start_s=1)
    with pytest.raises(openai.APIStatusError) as caught:
        chat(stack.tenant(tokens_per_month=5).sdk(), max_tokens=500)
    assert caught.value.code == "insufficient_quota"
