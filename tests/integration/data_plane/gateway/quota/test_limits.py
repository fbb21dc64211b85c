"""Each limit of a plan at the gateway: which limit refused, what the SDK receives, and that no limit is exceeded."""

import asyncio
import threading
import time

import aiohttp
import httpx
import openai
import pytest
from tokenizers import Tokenizer

from core import redis_keys
from core.contracts.grants import Prices
from core.rating import rate
from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures.gateway.tiny_tokenizer import tiny_route, tokenizer_json
from tests.integration.data_plane.conftest import chat

CHEAP = Prices(input_nanos=1, cached_input_nanos=1, output_nanos=2, kv_page_second_nanos=0)
DEAR = Prices(input_nanos=1000, cached_input_nanos=1000, output_nanos=2000, kv_page_second_nanos=0)
# The cost of CHAT with nine tokens of output.
COST = 9 + len(
    Tokenizer.from_str(tokenizer_json().decode()).encode(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
)


@pytest.fixture(autouse=True)
def _what_an_engine_received_is_billed_once_and_nothing_else_is(stack):
    """Refused requests of any tenant reached no engine and no bill."""
    received, billed = len(stack.witness.received()), len(stack.events())
    yield
    asked = sorted(line["received"] for line in stack.witness.received()[received:])
    wait_until(lambda: len(stack.events()) - billed >= len(asked), what="a usage event of each request")
    assert sorted(event.request_id for event in stack.events()[billed:]) == asked


def refusal(client: openai.OpenAI, **options: object) -> openai.RateLimitError:
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client, **options)
    return caught.value


def settled(tenant, *, requests: int) -> int:
    """The month's tokens, once exactly ``requests`` requests are billed to a tenant and the engine received those."""
    wait_until(tenant.holds_nothing, what="holds to be released")
    billed = {event.request_id for event in tenant.events()}
    received = [line["received"] for line in tenant.stack.witness.received() if line["received"] in billed]
    assert len(received) == len(billed) == len(tenant.events()) == requests
    used = tenant.quota()["month_used"]
    assert used == sum(event.input_tokens + event.output_tokens for event in tenant.events())
    return used


@pytest.fixture
def slow(stack):
    """A slow witness."""
    stack.witness.faults(token_interval_s=0.1, output_tokens=30)


def running(client: openai.OpenAI, **options: object):
    """A stream that has started and continues."""
    stream = chat(client, stream=True, **options)
    next(iter(stream))
    return stream


def test_requests_per_minute(stack):
    tenant = stack.tenant(requests_per_minute=3)
    client = tenant.sdk()
    for _ in range(3):
        chat(client, max_tokens=1)
    used = settled(tenant, requests=3)
    error = refusal(client)
    assert settled(tenant, requests=3) == used
    assert error.code == "rate_limit_exceeded"
    assert 1 <= int(error.response.headers["retry-after"]) <= 20
    assert error.response.headers["retry-after-ms"]
    assert error.response.headers["x-should-retry"] == "true"
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_tokens_per_minute_counts_max_tokens_and_refunds_unused_tokens(stack):
    tenant = stack.tenant(tokens_per_minute=100)
    client = tenant.sdk()
    answer = chat(client, max_tokens=60)  # about 90 of 100 are reserved, and most are given back
    event = tenant.event()
    left = 100 - event.input_tokens - event.output_tokens
    assert left > event.input_tokens + 5
    assert chat(client, max_tokens=1)
    used = settled(tenant, requests=2)
    error = refusal(client, max_tokens=60)
    assert settled(tenant, requests=2) == used
    assert error.code == "rate_limit_exceeded"
    assert int(error.response.headers["retry-after"]) >= 1
    assert answer.usage.total_tokens == event.input_tokens + event.output_tokens


def test_concurrent_requests(stack, slow):
    client = stack.tenant(concurrent_requests=2).sdk()
    streams = [running(client) for _ in range(2)]
    error = refusal(client)
    assert (error.code, error.response.headers["retry-after"]) == ("concurrent_requests_exceeded", "1")
    for stream in streams:
        stream.close()
    wait_until(lambda: _admitted(client), what="a place to become free")


def test_kv_pages_in_flight(stack, slow):
    client = stack.tenant(kv_pages=8).sdk()  # a request of 26 + 33 tokens holds 4 pages
    streams = [running(client, max_tokens=33) for _ in range(2)]
    error = refusal(client, max_tokens=1)
    assert (error.code, error.response.headers["retry-after"]) == ("kv_pages_exceeded", "1")
    for stream in streams:
        stream.close()
    wait_until(lambda: _admitted(client), what="pages to become free")


def test_tokens_per_month(stack):
    tenant = stack.tenant(tokens_per_month=100)
    client = tenant.sdk()
    chat(client, max_tokens=5)
    error = refusal(client, max_tokens=90)
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert error.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in error.response.headers
    assert tenant.quota()["month_used"] == tenant.event().input_tokens + tenant.event().output_tokens
    settled(tenant, requests=1)


def test_a_new_month_begins_with_nothing_used(stack):
    tenant = stack.tenant(tokens_per_month=100)
    stack.client.hset(redis_keys.tenant_quota(tenant.id), mapping={"month": "2001-01", "month_used": 100})
    chat(tenant.sdk(), max_tokens=5)
    assert stack.client.hget(redis_keys.tenant_quota(tenant.id), "month").decode() == time.strftime(
        "%Y-%m", time.gmtime()
    )


def test_a_raised_limit_takes_effect_at_once(stack, promised_s):
    tenant = stack.tenant(requests_per_minute=1)
    client = tenant.sdk()
    chat(client, max_tokens=1)
    refusal(client)
    stack.publisher.tenant(tenant_id=tenant.id)
    wait_until(lambda: _admitted(client), timeout_s=promised_s(2), what="the new limit")


def _admitted(client: openai.OpenAI) -> bool:
    try:
        chat(client, max_tokens=1)
    except openai.RateLimitError:
        return False
    return True


async def flood(url: str, key: str, count: int, body: dict) -> list[tuple[int, str]]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def one() -> tuple[int, str]:
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                return response.status, (await response.json()).get("error", {}).get("code", "")

        return await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"tokens_per_month": 15 * COST + 5}, 15),
        ({"requests_per_minute": 3}, 3),  # few per minute, so that none is refilled while they arrive
        ({"tokens_per_minute": 3 * COST + 5}, 3),
    ],
    ids=str,
)
async def test_two_hundred_requests_at_the_edge_never_oversell(stack, limits, fits):
    tenant = stack.tenant(**limits)
    tenant.sdk()
    stack.witness.faults(output_tokens=9)
    body = {**CHAT, "max_tokens": 9}  # all of it is used, so nothing is refunded
    answers = await flood(stack.gateway.url, tenant.key, 200, body)
    served = sum(1 for status, _ in answers if status == 200)
    assert served == fits
    assert {status for status, _ in answers} == {200, 429}
    wait_until(tenant.holds_nothing)
    assert tenant.quota()["month_used"] == COST * fits == sum(e.input_tokens + e.output_tokens for e in tenant.events())
    settled(tenant, requests=fits)


async def test_concurrent_requests_across_a_month_boundary_are_all_counted_in_the_new_month(stack):
    """The old month's usage is reset once, and no usage that settles after the boundary is lost."""
    tenant = stack.tenant()
    tenant.sdk()
    stack.witness.faults(output_tokens=9, token_interval_s=0.5)
    crossing = asyncio.create_task(flood(stack.gateway.url, tenant.key, 50, {**CHAT, "max_tokens": 9}))
    await asyncio.to_thread(
        wait_until, lambda: tenant.quota().get("concurrent") == 50, what="all of them to be under way"
    )
    stack.client.hset(redis_keys.tenant_quota(tenant.id), mapping={"month": "2001-01", "month_used": 10**9})
    assert {status for status, _ in await crossing} == {200}
    await asyncio.to_thread(wait_until, tenant.holds_nothing)
    assert tenant.quota()["month_used"] == 50 * COST


async def test_a_flood_never_exceeds_the_concurrency_and_page_limits(stack):
    tenant = stack.tenant(concurrent_requests=5, kv_pages=12)
    tenant.sdk()
    stack.witness.faults(output_tokens=9, token_interval_s=0.01)
    seen: list[dict[str, int]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(tenant.quota())

    thread = threading.Thread(target=look)
    thread.start()
    answers = await flood(stack.gateway.url, tenant.key, 200, {**CHAT, "max_tokens": 9})
    stop.set()
    thread.join()
    served = sum(1 for status, _ in answers if status == 200)
    assert served == len(tenant.events()) >= 4
    assert max(quota.get("kv_pages", 0) for quota in seen) <= 12  # 3 pages each, so 4 at a time
    assert max(quota.get("concurrent", 0) for quota in seen) <= 4
    wait_until(tenant.holds_nothing)


def test_a_request_without_a_replica_is_refused_at_once(stack):
    tenant = stack.tenant()
    client = tenant.sdk()
    stack.publisher.base_model(tiny_route("lonely"))
    wait_until(lambda: len(client.models.list().data) == 2)
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, model="lonely")
    assert (caught.value.status_code, caught.value.code) == (503, "no_replica")
    assert caught.value.response.headers["retry-after"] == "2"
    stack.publisher.put("base_models", "lonely", None)
    assert httpx.get(f"{stack.gateway.url}/readyz").status_code == 200


def test_a_request_is_charged_at_the_prices_of_its_admission(stack):
    """A price that rises during a request applies to later requests: this one's hold was made at the old price."""
    tenant = stack.tenant(prices=CHEAP, price_version_id="pv_old", spend_ceiling_nanos=10**9)
    client = tenant.sdk()
    stack.witness.faults(token_interval_s=0.05, output_tokens=20)
    stream = running(client, max_tokens=20)
    stack.publisher.tenant(tenant_id=tenant.id, prices=DEAR, price_version_id="pv_new", spend_ceiling_nanos=10**9)
    stack.witness.faults()
    wait_until(lambda: _charged_by(client, tenant) == "pv_new", what="the new price")
    for _ in stream:
        pass
    event = wait_until(lambda: next((one for one in tenant.events() if one.output_tokens == 20), None))
    assert event.price_version_id == "pv_old"
    charged = {"pv_old": CHEAP, "pv_new": DEAR}
    spent = sum(rate(one, charged[one.price_version_id]).amount_nanos for one in tenant.events())
    assert tenant.quota()["spent_nanos"] == spent


def _charged_by(client: openai.OpenAI, tenant) -> str | None:
    before = len(tenant.events())
    chat(client, max_tokens=1)
    wait_until(lambda: len(tenant.events()) > before)
    return tenant.events()[-1].price_version_id
