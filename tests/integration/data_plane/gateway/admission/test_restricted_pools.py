"""Pools that serve some requests only, at a gateway that reads their restrictions from the snapshot: where a request
runs, when it is refused, and when it waits for a pool's first replica.
"""

from collections.abc import Callable, Iterator

import msgspec
import openai
import pytest

from core import redis_keys
from core.contracts.demand import GatewayDemand
from core.contracts.fleet import WantedPool
from core.contracts.routes import PoolRoute
from tests.conftest import wait_until
from tests.fixtures.control_plane.registry_rows import beat
from tests.integration.data_plane.conftest import Tenant, chat
from tests.integration.data_plane.gateway.admission.test_queueing import Asked, waiting

CHATS = ("near_real_time", "interactive")
BATCH = {"x-tier": "batch"}
Restrict = Callable[..., None]


@pytest.fixture(scope="module")
def witnesses():
    """A replica each of two pools, and one of a third that starts later."""
    return {"rep_a": {"pool": "first"}, "rep_b": {"pool": "second"}, "rep_nightly": {"silent": True}}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"queue_batch_wait_s": 8}


@pytest.fixture
def restrict(stack) -> Iterator[Restrict]:
    """Restricts a pool for this test."""
    names = []

    def one(name: str, **restriction: object) -> None:
        stack.publisher.put("pools", name, PoolRoute(base_model="tiny-chat", **restriction))
        names.append(name)

    yield one
    for name in names:
        stack.publisher.put("pools", name, None)
    stack.client.delete(redis_keys.FLEET_WANTED)


def ran_on(tenant, client: openai.OpenAI, **options: object) -> str:
    before = len(tenant.events())
    chat(client, **{"max_tokens": 2, **options})
    return wait_until(lambda: tenant.events()[before:], what="the usage event")[0].replica_id


def refused(stack, code: str) -> tuple[Tenant, openai.APIStatusError]:
    """The first batch request that is refused so, and its tenant. Until then the gateway may not have read what this
    test has published, or may still know a replica of the test before.
    """

    def one() -> tuple[Tenant, openai.APIStatusError] | None:
        tenant = stack.tenant()
        try:
            chat(tenant.sdk(), max_tokens=2, extra_headers=BATCH)
        except openai.APIStatusError as error:
            return (tenant, error) if error.code == code else None
        return None

    return wait_until(one, what=code)


def want_nightly(stack, *, start_s: int, replicas_max: int = 3) -> None:
    """What the fleet process writes for a pool without replicas."""
    pool = WantedPool(
        pool="nightly", revisions=(), base_model="tiny-chat", rank_max=16, replicas_max=replicas_max, start_s=start_s
    )
    stack.client.hset(redis_keys.FLEET_WANTED, "nightly", msgspec.json.encode(pool))


def batch_that_waits(stack) -> list[tuple[str, ...]]:
    """The closed pools of the requests that the gateway reports as waiting."""
    keys = [redis_keys.gateway_demand(each.decode()) for each in stack.client.zrange(redis_keys.GATEWAYS, 0, -1)]
    reports = [msgspec.json.decode(value, type=GatewayDemand) for value in stack.client.mget(keys) if value]
    return [tuple(sorted(each.closed_pools)) for report in reports for each in report.waiting]


@pytest.mark.parametrize(("of_chats", "of_batch"), [("rep_a", "rep_b"), ("rep_b", "rep_a")])
def test_each_class_runs_in_the_pool_that_serves_it(stack, restrict, of_chats, of_batch):
    pools = {"rep_a": "first", "rep_b": "second"}
    restrict(pools[of_chats], service_classes=CHATS)
    restrict(pools[of_batch], service_classes=("batch",))
    tenant = stack.tenant()
    client = tenant.sdk()
    assert ran_on(tenant, client) == of_chats
    assert ran_on(tenant, client, extra_headers=BATCH) == of_batch


@pytest.mark.parametrize("own", ["rep_a", "rep_b"])
def test_a_tenants_dedicated_pool_serves_it_first_and_serves_no_other_tenant(stack, restrict, own):
    tenant, other = stack.tenant(), stack.tenant()
    restrict({"rep_a": "first", "rep_b": "second"}[own], tenants=(tenant.id,))
    assert ran_on(tenant, tenant.sdk()) == own
    assert ran_on(other, other.sdk()) != own


def test_long_requests_run_apart(stack, restrict):
    restrict("first", tokens_min=200)
    restrict("second", tokens_max=199)
    tenant = stack.tenant()
    client = tenant.sdk()
    assert ran_on(tenant, client) == "rep_b"
    assert ran_on(tenant, client, max_tokens=300) == "rep_a"


def test_a_request_that_no_pool_serves_is_refused_with_400_and_nothing_starts_for_it(stack, restrict):
    restrict("first", service_classes=CHATS)
    restrict("second", service_classes=CHATS)
    tenant, error = refused(stack, "no_pool_serves")
    assert (error.status_code, error.param) == (400, "max_tokens")
    assert tenant.holds_nothing()
    assert not tenant.events()


@pytest.mark.parametrize(("replicas_max", "retry_s"), [(3, 43), (0, 2)])
def test_a_pool_without_replicas_is_no_reason_to_change_the_request(stack, restrict, replicas_max, retry_s):
    """It may get one later, as the refused request asks."""
    restrict("first", service_classes=CHATS)
    restrict("second", service_classes=CHATS)
    want_nightly(stack, start_s=40, replicas_max=replicas_max)
    _, error = refused(stack, "no_replica")
    assert error.status_code == 503
    assert int(error.response.headers["retry-after"]) == retry_s
    wait_until(lambda: batch_that_waits(stack) == [("first", "second")], what="the refused request in the report")


@pytest.fixture
def nightly(stack) -> Iterator[Callable[..., None]]:
    """Publishes a heartbeat of the third pool's replica. It is gone at the gateway too before the next test begins: the
    third pool serves everything, and tests run in any order.
    """
    yield lambda **state: beat(
        stack.client, "tiny-chat", replica_id="rep_nightly", url=stack.witnesses["rep_nightly"].url, pool="nightly",
        **state,
    )  # fmt: skip
    stack.client.zrem(redis_keys.REPLICAS, "rep_nightly")
    stack.client.delete(redis_keys.FLEET_WANTED)
    refused(stack, "no_pool_serves")  # the other pools still take chats alone


def test_a_replica_that_is_not_ready_yet_is_no_reason_to_change_the_request(stack, restrict, nightly):
    """Also where no fleet process starts replicas."""
    restrict("first", service_classes=CHATS)
    restrict("second", service_classes=CHATS)
    nightly(state="starting")
    assert refused(stack, "no_replica")


def test_batch_waits_for_the_first_replica_of_its_pool(stack, restrict, nightly):
    restrict("first", service_classes=CHATS)
    restrict("second", service_classes=CHATS)
    want_nightly(stack, start_s=1)
    tenant = stack.tenant()
    asked = Asked(tenant.sdk(), extra_headers=BATCH)
    wait_until(lambda: waiting(stack.gateway) == 1, what="the request to wait")
    nightly()
    asked.join()
    assert asked.error is None
    assert tenant.event().replica_id == "rep_nightly"
