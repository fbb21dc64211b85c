"""An adapter that a replica cannot load: another replica serves its requests, and the retry budget prevents retry
storms.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from data_plane.gateway.settings import GatewaySettings
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, Stack, Tenant, chat

CALLS = 30
BURST = GatewaySettings.model_fields["retry_burst"].default
LONG_S = 0.5  # the time in which a load fails: until then all concurrent requests are sent there
CANNOT = {"loading": "1", "loading_code": "store_unavailable", "adapters_only": True}


@pytest.fixture(scope="module")
def witnesses():
    return {"rep_one": {}, "rep_two": {}}


@pytest.fixture(scope="module")
def proxied():
    return True


def attempts(stack: Stack) -> Counter[str]:
    return Counter({name: len(witness.received()) for name, witness in stack.witnesses.items()})


def adapters(tenant: Tenant, client: openai.OpenAI, count: int) -> list[str]:
    names = [f"{tenant.id}-{number}" for number in range(count)]
    for name in names:
        tenant.stack.publisher.adapter(tenant.id, name)
    wait_until(lambda: {one.id for one in client.models.list()} >= set(names), what="adapters to be known")
    return names


def refusals_of(client: openai.OpenAI, model: str) -> list[str]:
    """The error codes of the refused ones among ``CALLS`` concurrent requests."""

    def one(_number: int) -> str:
        try:
            return "" if chat(client, model=model, max_tokens=4).choices else "empty"
        except openai.APIStatusError as error:
            return str(error.code)

    with ThreadPoolExecutor(CALLS) as callers:
        return [failure for failure in callers.map(one, range(CALLS)) if failure]


def test_at_most_one_of_many_concurrent_first_calls_of_an_unloadable_adapter_fails(stack):
    tenant, broken = stack.tenant(), "rep_one"
    client = tenant.sdk()
    stack.witnesses[broken].faults(**CANNOT)
    stack.proxies[broken].set(latency_s=LONG_S)
    for name in adapters(tenant, client, 20):  # the test does not know which replica this adapter prefers
        before = attempts(stack)
        refused = refusals_of(client, name)
        failed = (attempts(stack) - before)[broken]
        assert len(refused) <= 1, refused
        if failed > BURST:
            break
    else:
        pytest.fail("so many never went where the adapter could not be loaded")
    before = attempts(stack)
    assert not refusals_of(client, name)
    assert set(attempts(stack) - before) == {"rep_one", "rep_two"} - {broken}, "it is remembered for a while"
    wait_until(tenant.holds_nothing)


@pytest.mark.parametrize(
    ("faults", "code", "tried"),
    [
        (CANNOT, "store_unavailable", (2, 1, 1)),  # the first call finds out; then no replica is better
        ({"status": 500, "adapters_only": True}, "replica_failed", (1,)),
    ],
    ids=["no replica can load it", "replicas fail altogether"],
)
def test_the_retry_budget_bounds_retries(stack, thrifty, faults, code, tried):
    for witness in stack.witnesses.values():
        witness.faults(**faults)
    tenant = stack.tenant()
    client = tenant.sdk(thrifty.url)
    (name,) = adapters(tenant, client, 1)
    for expected in tried:
        before = attempts(stack)
        with pytest.raises(openai.InternalServerError) as refused:
            chat(client, model=name, max_tokens=4)
        assert refused.value.code == code
        assert (attempts(stack) - before).total() == expected
    assert chat(client, max_tokens=4).choices, "the replicas are otherwise healthy"
    wait_until(lambda: tenant.events() and tenant.holds_nothing(), what="the bill")


@pytest.fixture(scope="module")
def thrifty(module_stack):
    """A gateway whose budget allows no retry."""
    settings = {**BRISK, "retry_burst": 0, "retry_percent": 0, "adapter_failure_backoff_s": 60}
    with processes.gateway(module_stack.folder, module_stack.redis_url, "thrifty", **settings) as gateway:
        yield gateway
