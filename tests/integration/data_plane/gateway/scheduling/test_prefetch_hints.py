"""Hints that the gateway sends to replicas after a listing."""

import msgspec
import pytest

from core import redis_keys
from core.contracts.routes import PrefetchHint
from tests.conftest import wait_until
from tests.fixtures.gateway.published import newest_name


@pytest.fixture(scope="module")
def gateway_settings() -> dict[str, object]:
    return {
        "listing_hint_interval_s": 1.5,
        "listing_hint_adapters_max": 2,
    }


def hints(stack) -> list[PrefetchHint]:
    entries = stack.client.xrange(redis_keys.PREFETCH_HINTS)
    return [msgspec.json.decode(fields[b"hint"], type=PrefetchHint) for _, fields in entries]


def test_the_first_listing_by_a_key_hints_at_the_newest_of_its_tenants_adapters(stack):
    client = stack.tenant().sdk()  # whose own listings, without adapters, hint at nothing
    stack.client.delete(redis_keys.PREFETCH_HINTS)  # hints of other tests
    tenant, other = stack.tenant(), stack.tenant()
    stack.publisher.adapter(other.id, "theirs")
    made = [
        stack.publisher.route(
            msgspec.structs.replace(stack.publisher.adapter(tenant.id, f"bot-{number}"), created_at_ms=number)
        )
        for number in range(3)
    ]
    stack.tenant().sdk()  # a gateway that knows this later key knows the adapters
    client = tenant.sdk()
    wait_until(lambda: len(hints(stack)) == 2, what="two hints")
    assert {hint.engine_name for hint in hints(stack)} == {newest_name(route) for route in made[1:]}
    assert {(hint.tenant_id, hint.reason, hint.rank_class) for hint in hints(stack)} == {(tenant.id, "listing", 16)}

    def of(whom) -> list[PrefetchHint]:
        return [hint for hint in hints(stack) if hint.tenant_id == whom.id]

    client.models.list()
    other.sdk()
    wait_until(lambda: of(other), what="the hint of a listing after it")
    assert len(of(tenant)) == 2, "no second hint so soon"
    wait_until(lambda: client.models.list() and len(of(tenant)) == 4, what="hints of a later listing")
