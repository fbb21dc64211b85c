"""What stands among the replicas for a provider's model: how much it takes at once, and whose circuit it has."""

import msgspec
import pytest

from core.contracts.replicas import OUTSIDE
from core.kv_pages import pages_for
from data_plane.gateway.providers.replicas import provider_replicas
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.placement import Candidate, PlacementQuery, rank
from data_plane.gateway.scheduling.replica_load import Occupancy, ProviderLoad, Shares
from data_plane.gateway.state.snapshot import Tables
from tests.fixtures.gateway.requests import inference_request
from tests.fixtures.gateway.simulated_gateways import COSTS
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.fixtures.providers.routes import outside_model, provider_route


def stands_for(**changes: object):
    tables = Tables()
    tables.base_models["tiny-chat"] = tiny_route()
    tables.base_models["mini"] = outside_model("mini", provider_route(**changes))
    return provider_replicas(tables)


def test_a_model_of_a_provider_stands_as_one_replica_and_others_do_not():
    (model,) = stands_for(requests_max=3)
    assert (model.status.id, model.status.base_model) == (f"{OUTSIDE}1.mini", "mini")
    assert model.status.pages_total == 3 * model.context_pages == 3 * pages_for(4096)
    assert provider_replicas(None) == stands_for(requests_max=0) == []


def test_it_takes_as_many_requests_at_once_as_it_may_however_short_they_are():
    (model,) = stands_for(requests_max=3)
    load, shares = ProviderLoad(model.context_pages), Shares()
    request = inference_request(base_model="mini")
    running = []
    for _ in range(3):
        assert rank([Candidate(model.status, load)], PlacementQuery(request), COSTS).now
        of_one = {"tenant_id": "tn_1", "weight": 1, "pages": 2, "prompt_tokens": 16, "adapter": ""}
        running.append(Occupancy(load, shares, **of_one))
    assert not rank([Candidate(model.status, load)], PlacementQuery(request), COSTS).now
    running.pop().leave()
    assert rank([Candidate(model.status, load)], PlacementQuery(request), COSTS).now


async def healthy(_replica) -> bool:
    return True


@pytest.mark.parametrize(
    ("change", "allowed"), [({"key": "another"}, True), ({"url": "https://b.example.com"}, True), ({}, False)]
)
def test_a_circuit_is_of_the_provider_the_model_and_the_key(change, allowed):
    breakers = CircuitBreakers(healthy, failures=1, open_s=60, open_max_s=60, trial_s=1)
    (before,) = stands_for()
    breakers.failed(before.status)
    same_seal = before.status if not change else stands_for(**change)[0].status
    assert breakers.allows(same_seal) is allowed
    another = msgspec.structs.replace(before.status, id=f"{OUTSIDE}1.large")
    assert breakers.allows(another)
