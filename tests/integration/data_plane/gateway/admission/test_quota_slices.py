"""While Redis does not answer, a plan with quota slices is served only from reservations made in advance."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from core import redis_keys
from core.contracts.grants import Prices
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, Tenant, chat, separate_stack

PRICES = Prices(input_nanos=100, cached_input_nanos=10, output_nanos=400, kv_page_second_nanos=0)
# For as long as its last heartbeat holds, a gateway serves without Redis; replicas' count as fresh so long.
PATIENT = {
    **BRISK,
    "replica_stale_s": 1.5,
    "reserve_deadline_ms": 250,
    "heartbeat_lease_s": 60,
    "quota_slice_tokens": 256,
}


@pytest.fixture
def own(tmp_path):
    with separate_stack(tmp_path, **PATIENT) as running:
        yield running


def slices_ready(tenant: Tenant, *gateways: processes.GatewayProcess, slices: int = 2) -> bool:
    """Redis holds the slices, and their gateways know it: one that waited too long for a reservation gives it back."""
    quota = tenant.quota()
    held = (quota.get("concurrent"), quota.get("month_held")) == (slices, slices * 256)
    return held and sum(gateway.metric("tenora_gateway_quota_slices") for gateway in gateways) == slices


def refused(client: openai.OpenAI, **options: object) -> str | None:
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, **options)
    assert caught.value.status_code == 503
    return caught.value.code


def test_slices_are_spent_during_a_redis_outage_then_settled_and_taken_again(own):
    stack, valkey, _ = own
    tenant = stack.tenant(when_quota_is_unavailable="slice", prices=PRICES, spend_ceiling_nanos=1_000_000)
    closed = stack.tenant()
    client, other = tenant.sdk(), closed.sdk()
    stack.witness.faults(output_tokens=20)
    chat(other, max_tokens=20)
    chat(client, max_tokens=20)
    wait_until(lambda: slices_ready(tenant, stack.gateway), what="slices")
    valkey.send_signal(signal.SIGSTOP)
    time.sleep(2 * PATIENT["replica_stale_s"])
    assert refused(other) == "quota_unavailable"
    assert refused(client, max_tokens=500) == "quota_unavailable"  # more than a slice has
    assert chat(client, max_tokens=20).usage.completion_tokens == 20
    assert chat(client).usage.completion_tokens == 20  # without max_tokens, a request gets the slice's tokens
    assert refused(client, max_tokens=1) == "quota_unavailable"
    valkey.send_signal(signal.SIGCONT)
    wait_until(lambda: len(tenant.events()) == 3, what="the settlements")
    wait_until(lambda: slices_ready(tenant, stack.gateway), what="new slices")
    assert tenant.quota()["month_used"] == sum(each.input_tokens + each.output_tokens for each in tenant.events())
    assert {each.request_id for each in tenant.events()} == set(stack.witness.journal()) - {
        each.request_id for each in closed.events()
    }
    stack.gateway.process.send_signal(signal.SIGTERM)
    stack.gateway.process.wait(20)
    assert tenant.holds_nothing()


def test_a_slice_whose_replica_fails_moves_to_another_and_leaves_no_hold(own):
    stack, valkey, _ = own
    tenant = stack.tenant(when_quota_is_unavailable="slice")
    client = tenant.sdk()
    with processes.witness(stack.folder, stack.redis_url, "rep_two") as second, ThreadPoolExecutor(1) as pool:
        witnesses = {"rep_one": stack.witness, "rep_two": second}
        chat(client, max_tokens=1)
        wait_until(lambda: slices_ready(tenant, stack.gateway), what="slices")
        for witness in witnesses.values():
            witness.faults(hang=True)
        before = {name: len(witness.lines()) for name, witness in witnesses.items()}
        valkey.send_signal(signal.SIGSTOP)
        answer = pool.submit(chat, client, max_tokens=1)
        hanging = wait_until(
            lambda: {name for name, witness in witnesses.items() if len(witness.lines()) > before[name]},
            what="the request on a replica",
        )
        (other,) = set(witnesses) - hanging
        witnesses[other].faults()
        valkey.send_signal(signal.SIGCONT)
        assert stack.client.ping()
        witnesses[hanging.pop()].process.kill()
        assert answer.result(20).usage.completion_tokens == 1
        assert any("received" in line for line in witnesses[other].lines()[before[other] :])
        wait_until(lambda: len(tenant.events()) == 2, what="the settlement")
        for name in witnesses:
            assert int(stack.client.hget(redis_keys.replica_held_pages(name), "total") or 0) == 0
