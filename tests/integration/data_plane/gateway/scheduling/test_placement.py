"""Where an adapter's requests go: to the cheapest pool that accepts its rank, and there to a replica that holds it."""

import openai
import pytest

from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures.gateway.published import newest_name
from tests.fixtures.quota.redis_commands import wait_for_commands
from tests.integration.data_plane.conftest import chat


@pytest.fixture(scope="module")
def witnesses():
    """Two replicas of one class, and one of a larger class."""
    ranks = {"rep_a": 16, "rep_b": 16, "rep_wide": 64}
    return {name: {"rank_max": rank, "slots": 2, "disk_load_s": 0.05} for name, rank in ranks.items()}


def known(client: openai.OpenAI, name: str) -> None:
    wait_until(lambda: name in {model.id for model in client.models.list()}, what="the adapter to be listed")


def served_by(tenant, client, name: str) -> tuple[str, str | None]:
    """(replica, tier) of one request."""
    before = len(tenant.events())
    chat(client, model=name, max_tokens=2)
    event = wait_until(lambda: tenant.events()[before:], what="the usage event")[0]
    return event.replica_id, event.adapter_tier


@pytest.mark.parametrize("elsewhere", ["rep_a", "rep_b"])
def test_an_adapter_is_served_where_it_is_resident_even_if_other_replicas_are_freer(stack, elsewhere):
    tenant = stack.tenant()
    route = stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    known(client, "bot")
    stack.witnesses[elsewhere].control("POST", "/prefetch", {"name": newest_name(route), "tier": "memory"})
    wait_until(lambda: newest_name(route).encode() in stack.client.get(redis_keys.replica_residency(elsewhere)))
    wait_for_commands(stack.client, f"ZRANGE {redis_keys.REPLICAS}")  # the gateway has read it by then
    assert served_by(tenant, client, "bot") == (elsewhere, "memory")
    assert served_by(tenant, client, "bot") == (elsewhere, "slot")


def test_each_rank_goes_to_the_cheapest_pool_that_accepts_it(stack):
    tenant = stack.tenant()
    for name, rank in (("narrow", 8), ("wide", 32), ("too-wide", 128)):
        stack.publisher.adapter(tenant.id, name, rank=rank)
    client = tenant.sdk()
    known(client, "too-wide")
    assert {served_by(tenant, client, "narrow")[0] for _ in range(4)} <= {"rep_a", "rep_b"}
    assert {served_by(tenant, client, "wide")[0] for _ in range(4)} == {"rep_wide"}
    with pytest.raises(openai.InternalServerError) as refused:
        chat(client, model="too-wide", max_tokens=2)
    assert (refused.value.status_code, refused.value.code) == (503, "no_replica")
    assert "rank 128" in refused.value.message


def test_requests_of_adapters_report_their_tier_and_are_counted_by_it(stack):
    def counted(tier: str) -> float:
        labels = (
            f'{{adapter_tier="{tier}",base_model="tiny-chat",phase="load",pool="",rank_class="16",'
            'service_class="interactive"}'
        )
        return stack.gateway.metric("tenora_gateway_phase_seconds_count", labels)

    tenant = stack.tenant()
    stack.publisher.adapter(tenant.id, "counted")
    client = tenant.sdk()
    known(client, "counted")
    before = {tier: counted(tier) for tier in ("store", "slot")}
    tiers = []
    while "slot" not in tiers[-1:]:
        tiers.append(served_by(tenant, client, "counted")[1])
    assert tiers[0] == "store"
    assert tenant.events()[0].adapter_load_ms >= 50
    assert {tier: counted(tier) - before[tier] for tier in before} == {tier: tiers.count(tier) for tier in before}
