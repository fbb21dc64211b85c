"""Each limit of a plan at the gateway: which limit refused, what the SDK receives, and that no limit is exceeded."""

import httpx
import openai
import pytest

from core.contracts.grants import Prices
from core.rating import rate
from tests.conftest import wait_until
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.conftest import chat

CHEAP = Prices(input_nanos=1, cached_input_nanos=1, output_nanos=2, kv_page_second_nanos=0)
DEAR = Prices(input_nanos=1000, cached_input_nanos=1000, output_nanos=2000, kv_page_second_nanos=0)


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


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"concurrent_requests": 2}, "concurrent_requests_exceeded"),
        ({"kv_pages": 8}, "kv_pages_exceeded"),  # a request of 26 + 33 tokens holds 4
    ],
)
def test_concurrent_requests_and_kv_pages_in_flight(stack, limits, code):
    stack.witness.faults(token_interval_s=0.1, output_tokens=30)
    client = stack.tenant(**limits).sdk()
    streams = [running(client, max_tokens=33) for _ in range(2)]
    error = refusal(client, max_tokens=1)
    assert (error.code, error.response.headers["retry-after"]) == (code, "1")
    for stream in streams:
        stream.close()
    wait_until(lambda: _admitted(client), what="room")


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


def _admitted(client: openai.OpenAI) -> bool:
    try:
        chat(client, max_tokens=1)
    except openai.RateLimitError:
        return False
    return True


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
