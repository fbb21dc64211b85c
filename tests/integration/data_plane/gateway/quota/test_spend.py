"""A tenant's spending at the gateway: never above its ceiling, for any number of gateways and requests, and the
answers that callers get.
"""

import asyncio
import contextlib
from collections import Counter

import aiohttp
import httpx
import openai
import pytest

from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.money import NANOS_PER_CENT, NANOS_PER_DOLLAR
from core.rating import rate
from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, Tenant, chat, slowly

CENT = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=NANOS_PER_CENT, kv_page_second_nanos=0)
DOLLARS = 5 * NANOS_PER_DOLLAR
REQUESTS = 1000


def spent(tenant: Tenant) -> int:
    return sum(rate(event, CENT).amount_nanos for event in tenant.events())


async def race(urls: list[str], key: str, bodies: list[dict]) -> Counter[int]:
    """Send all requests at once, distributed over the gateways; returns the number of responses per status."""
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def one(number: int, body: dict) -> int:
            async with session.post(urls[number % len(urls)] + "/v1/chat/completions", json=body) as response:
                await response.read()
                return response.status

        return Counter(await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies))))


@pytest.mark.soak
@pytest.mark.scenario(91)
async def test_a_thousand_ten_cent_requests_through_four_gateways_spend_exactly_five_dollars(stack):
    tenant = stack.tenant(prices=CENT, spend_ceiling_nanos=DOLLARS)
    stack.witness.faults(output_tokens=10)
    with contextlib.ExitStack() as opened:
        gateways = [stack.gateway] + [
            opened.enter_context(processes.gateway(stack.folder, stack.redis_url, f"gateway-{number}", **BRISK))
            for number in range(2, 5)
        ]
        urls = [each.url for each in gateways]
        for url in urls:
            tenant.sdk(url)
        statuses = await race(urls, tenant.key, [{**CHAT, "max_tokens": 10, "stream": True}] * REQUESTS)
        assert set(statuses) == {200, 429}
        assert sum(statuses.values()) == REQUESTS
        wait_until(tenant.holds_nothing, what="every hold to be given back")
    assert statuses[200] == len(tenant.events())
    assert 4.5 * NANOS_PER_DOLLAR <= spent(tenant) <= DOLLARS
    quota = tenant.quota()
    assert (quota["spent_nanos"], quota["spend_held_nanos"]) == (spent(tenant), 0)


@pytest.mark.scenario(91)
async def test_fifty_concurrent_requests_of_a_hundred_spend_exactly_a_thousand(stack):
    """Each costs exactly its hold: ten fit, whatever balance the other forty see at either gateway."""
    each = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=10, kv_page_second_nanos=0)
    tenant = stack.tenant(prices=each, spend_ceiling_nanos=1000)
    stack.witness.faults(output_tokens=10, token_interval_s=0.02)
    with processes.gateway(stack.folder, stack.redis_url, "second", **BRISK) as second:
        urls = [stack.gateway.url, second.url]
        for url in urls:
            tenant.sdk(url)
        statuses = await race(urls, tenant.key, [{**CHAT, "max_tokens": 10}] * 50)
        assert statuses == {200: 10, 429: 40}
        wait_until(tenant.holds_nothing, what="every hold to be given back")
    assert sum(rate(event, each).amount_nanos for event in tenant.events()) == 1000
    assert (tenant.quota()["spent_nanos"], tenant.quota()["spend_held_nanos"]) == (1000, 0)


def test_a_spent_ceiling_is_named_and_not_retryable(stack):
    tenant = stack.tenant(prices=CENT, spend_ceiling_nanos=20 * NANOS_PER_CENT)
    client = tenant.sdk()
    stack.witness.faults(output_tokens=15)
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client, max_tokens=21)
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert caught.value.body["max_tokens_that_fit"] == 20
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert "$0.20" in caught.value.message
    chat(client, max_tokens=15)
    with pytest.raises(openai.RateLimitError):
        chat(client)  # five would fit; no request is served with fewer than min_completion_tokens
    stack.publisher.tenant(tenant_id=tenant.id, prices=CENT, spend_ceiling_nanos=DOLLARS)
    wait_until(lambda: tenant_may(client), timeout_s=5, what="a raised ceiling to count")


def tenant_may(client: openai.OpenAI) -> bool:
    with contextlib.suppress(openai.RateLimitError):
        return bool(chat(client, max_tokens=10))
    return False


def test_a_key_with_its_own_limits_shows_them_and_does_not_affect_other_keys(stack):
    tenant = stack.tenant(prices=CENT, spend_ceiling_nanos=DOLLARS, tokens_per_minute=100_000)
    limits = KeyLimits(requests_per_minute=6, spend_nanos_per_month=12 * NANOS_PER_CENT)
    limited = Tenant(stack, tenant.id, stack.publisher.key(tenant.id, limits=limits))
    client, other = limited.sdk(), tenant.sdk()
    stack.witness.faults(output_tokens=10)
    chat(client, max_tokens=10)
    with pytest.raises(openai.RateLimitError, match="this key"):
        chat(client, max_tokens=10)
    chat(other, max_tokens=10)

    def shown(key: str) -> dict:
        return httpx.get(f"{stack.gateway.url}/v1/quota", headers={"authorization": f"Bearer {key}"}).json()

    quota = shown(limited.key)
    assert quota["key"]["limits"]["spend_nanos_per_month"] == 12 * NANOS_PER_CENT
    assert quota["key"]["used"]["spend_nanos_per_month"] == 10 * NANOS_PER_CENT
    assert quota["key"]["used"]["requests_per_minute"] == 1
    assert 0 < quota["key"]["resets_ms"]["requests_per_minute"] <= 10_000
    assert quota["tenant"]["used"]["spend_nanos_per_month"] == 20 * NANOS_PER_CENT
    assert set(quota["tenant"]["held"].values()) == {0}
    assert shown(tenant.key)["key"] is None
    assert httpx.get(f"{stack.gateway.url}/v1/quota").status_code == 401


def test_a_running_streams_holds_are_shown_until_it_ends(stack):
    priced = Prices(input_nanos=3, cached_input_nanos=1, output_nanos=7, kv_page_second_nanos=11)
    tenant = stack.tenant(prices=priced, spend_ceiling_nanos=DOLLARS)
    key = stack.publisher.key(tenant.id, limits=KeyLimits(concurrent_requests=5))
    client = Tenant(stack, tenant.id, key).sdk()
    slowly(stack)

    def shown() -> dict:
        quota = httpx.get(f"{stack.gateway.url}/v1/quota", headers={"authorization": f"Bearer {key}"}).json()
        assert quota["key"]["held"] == quota["tenant"]["held"]
        return quota["tenant"]["held"]

    stream = chat(client, stream=True, max_tokens=300)
    next(iter(stream))
    (lease,) = stack.client.zrange(redis_keys.tenant_leases(tenant.id), 0, -1)
    names = ("pages", "input", "output", "nanos")
    reserved = stack.client.hmget(redis_keys.reservation(tenant.id, lease.decode()), names)
    pages, prompt_tokens, output_tokens, nanos = map(int, reserved)
    assert shown() == {
        "concurrent_requests": 1, "kv_pages": pages, "tokens": prompt_tokens + output_tokens, "gpu_seconds": 0,
        "spend_nanos": nanos,
    }  # fmt: skip
    stream.close()
    wait_until(tenant.holds_nothing, what="the stream to be settled")
    assert set(shown().values()) == {0}
    assert (prompt_tokens, output_tokens) == (tenant.event().input_tokens, 300)
    assert pages == -(-(prompt_tokens + 300) // 16)
    assert nanos > 3 * prompt_tokens + 7 * 300, "and its pages for its longest run"


def test_a_dead_gateways_holds_are_not_shown_as_held(stack):
    tenant = stack.tenant()
    tenant.sdk()
    stack.client.hset(redis_keys.tenant_quota(tenant.id), mapping={"concurrent": 1, "kv_pages": 3, "month_held": 9})
    reservation = {
        "levels": redis_keys.tenant_quota(tenant.id), "pages": 3, "input": 4, "output": 5, "nanos": 0,
        "replica_held": "none", "replica_pages": "none:pages",
    }  # fmt: skip
    stack.client.hset(redis_keys.reservation(tenant.id, "req_dead"), mapping=reservation)
    stack.client.zadd(redis_keys.tenant_leases(tenant.id), {"req_dead": 1})
    headers = {"authorization": f"Bearer {tenant.key}"}
    assert set(httpx.get(f"{stack.gateway.url}/v1/quota", headers=headers).json()["tenant"]["held"].values()) == {0}
    assert tenant.quota()["concurrent"] == 1  # reading changes nothing
