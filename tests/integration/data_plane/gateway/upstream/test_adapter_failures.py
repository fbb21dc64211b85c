"""An adapter that a replica cannot load: another replica serves its requests, and the retry budget prevents retry
storms.
"""

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from data_plane.gateway.settings import GatewaySettings
from tenora.stack.program import free_port
from tests.conftest import running, wait_until
from tests.fixtures import processes
from tests.fixtures.faults.tcp_proxy import faults_proxy
from tests.fixtures.gateway.published import Publisher
from tests.integration.data_plane.conftest import BRISK, Stack, chat, emptied

CALLS = 50
BURST = GatewaySettings.model_fields["retry_burst"].default
LONG_S = 0.5  # the time in which a load fails: until then all concurrent requests are sent there
CANNOT = {"loading": "1", "loading_code": "store_unavailable", "adapters_only": True}


class Pair:
    """Two replicas behind proxies, and the gateways that use them."""

    def __init__(self, folder, redis_url, client, up) -> None:
        self.publisher, self.witnesses, self.proxies = Publisher(client, processes.PEPPER), {}, {}
        self.publisher.base_model()
        for name in ("rep_one", "rep_two"):
            port = free_port()
            proxy = self.proxies[name] = up.enter_context(faults_proxy(port))
            program = processes.witness_program(folder, redis_url, name, port=port, public_port=proxy.port)
            process = up.enter_context(running(program))
            url, journal = f"http://127.0.0.1:{port}", folder / f"{name}.jsonl"
            self.witnesses[name] = processes.WitnessProcess(name, url, process, journal)
        gateway = up.enter_context(processes.gateway(folder, redis_url, **BRISK))
        stack = Stack(
            client, self.publisher, self.witnesses["rep_one"], gateway, folder, redis_url, contextlib.ExitStack()
        )
        self.stack = stack

    def attempts(self) -> Counter[str]:
        return Counter({name: len(witness.received()) for name, witness in self.witnesses.items()})

    def adapters(self, tenant, client: openai.OpenAI, count: int) -> list[str]:
        names = [f"{tenant.id}-{number}" for number in range(count)]
        for name in names:
            self.publisher.adapter(tenant.id, name)
        wait_until(lambda: {one.id for one in client.models.list()} >= set(names), what="adapters to be known")
        return names


@pytest.fixture(scope="module")
def module_pair(redis_server, tmp_path_factory):
    with contextlib.ExitStack() as up:
        client = up.enter_context(emptied(redis_server))
        yield Pair(tmp_path_factory.mktemp("pair"), redis_server, client, up)


@pytest.fixture
def pair(module_pair):
    for name, witness in module_pair.witnesses.items():
        witness.faults()
        module_pair.proxies[name].set()
    with module_pair.stack.opened:
        yield module_pair


def refusals_of(client: openai.OpenAI, model: str) -> list[str]:
    """The error codes of the refused ones among ``CALLS`` concurrent requests."""

    def one(_number: int) -> str:
        try:
            return "" if chat(client, model=model, max_tokens=4).choices else "empty"
        except openai.APIStatusError as error:
            return str(error.code)

    with ThreadPoolExecutor(CALLS) as callers:
        return [failure for failure in callers.map(one, range(CALLS)) if failure]


@pytest.mark.parametrize("broken", ["rep_one", "rep_two"])
def test_at_most_one_of_fifty_concurrent_first_calls_of_an_unloadable_adapter_fails(pair, broken):
    tenant = pair.stack.tenant()
    client = tenant.sdk()
    pair.witnesses[broken].faults(**CANNOT)
    pair.proxies[broken].set(latency_s=LONG_S)
    for name in pair.adapters(tenant, client, 20):  # the test does not know which replica this adapter prefers
        before = pair.attempts()
        refused = refusals_of(client, name)
        failed = (pair.attempts() - before)[broken]
        assert len(refused) <= 1, refused
        if failed > BURST:
            break
    else:
        pytest.fail("so many never went where the adapter could not be loaded")
    before = pair.attempts()
    assert not refusals_of(client, name)
    assert set(pair.attempts() - before) == {"rep_one", "rep_two"} - {broken}, "it is remembered for a while"
    wait_until(tenant.holds_nothing)


def test_the_retry_budget_bounds_retries_of_an_adapter_that_no_replica_can_load(pair):
    """The first call finds out. After that each request is tried once, because no replica is better."""
    stack, settings = pair.stack, {**BRISK, "retry_burst": 0, "retry_percent": 0, "adapter_failure_backoff_s": 60}
    for witness in pair.witnesses.values():
        witness.faults(**CANNOT)
    with processes.gateway(stack.folder, stack.redis_url, "thrifty", **settings) as thrifty:
        tenant = stack.tenant()
        client = tenant.sdk(thrifty.url)
        (name,) = pair.adapters(tenant, client, 1)
        for attempts in (2, 1, 1):
            before = pair.attempts()
            with pytest.raises(openai.InternalServerError) as refused:
                chat(client, model=name, max_tokens=4)
            assert refused.value.code == "store_unavailable"
            assert (pair.attempts() - before).total() == attempts
        assert chat(client, max_tokens=4).choices, "the replicas are otherwise healthy"
    assert tenant.events()
    wait_until(tenant.holds_nothing)


def test_a_replica_that_fails_altogether_uses_the_retry_budget(pair):
    stack, settings = pair.stack, {**BRISK, "retry_burst": 0, "retry_percent": 0}
    for witness in pair.witnesses.values():
        witness.faults(status=500, adapters_only=True)
    with processes.gateway(stack.folder, stack.redis_url, "counted", **settings) as counted:
        tenant = stack.tenant()
        client = tenant.sdk(counted.url)
        (name,) = pair.adapters(tenant, client, 1)
        before = pair.attempts()
        with pytest.raises(openai.InternalServerError) as refused:
            chat(client, model=name, max_tokens=4)
        assert refused.value.code == "replica_failed"
        assert (pair.attempts() - before).total() == 1
