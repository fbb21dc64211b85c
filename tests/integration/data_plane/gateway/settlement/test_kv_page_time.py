"""KV page-time is billed as the engine measured it. Without a report, the gateway bills a figure of its own."""

import itertools

import msgspec
import pytest

from core import redis_keys
from core.contracts.engine_usage import EngineUsageReport
from core.kv_area import even_growth_page_ms
from core.kv_pages import page_ms
from tests.conftest import wait_until
from tests.fixtures.processes import sample
from tests.integration.data_plane.conftest import assert_settled, chat, slowly

OUTPUT_TOKENS = 60


def unmeasured(stack) -> float:
    return sample(stack.gateway.metrics_url, "tenora_gateway_kv_unmeasured_total", "")


def settled(tenant, *, stream: bool, **options: object):
    """The event of one request that ran to its end, and the witness's journal of it."""
    answer = chat(tenant.sdk(), stream=stream, max_tokens=OUTPUT_TOKENS, **options)
    if stream:
        list(answer)
    return assert_settled(tenant, "done")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole answer"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_a_request_costs_the_area_that_its_engine_measured(stack, tenant, stream, sequences):
    slowly(stack, token_interval_s=0.01, output_tokens=OUTPUT_TOKENS)
    before = unmeasured(stack)
    event, journal = settled(tenant, stream=stream, n=sequences)
    assert (event.kv_page_ms, event.kv_measured) == (journal.kv_page_ms, True)
    length = event.input_tokens // sequences + OUTPUT_TOKENS
    assert 0 < event.kv_page_ms < 0.9 * sequences * page_ms(length, event.duration_ms), "pages at their largest"
    assert unmeasured(stack) == before


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole answer"])
def test_without_a_report_the_gateway_bills_even_growth_and_counts_it(stack, tenant, stream):
    slowly(stack, token_interval_s=0.01, output_tokens=OUTPUT_TOKENS, kv_reports=False)
    before = unmeasured(stack)
    event, _ = settled(tenant, stream=stream)
    assert not event.kv_measured
    most = even_growth_page_ms(event.input_tokens, OUTPUT_TOKENS, event.duration_ms)
    assert 0 < event.kv_page_ms <= most < page_ms(event.input_tokens + OUTPUT_TOKENS, event.duration_ms)
    assert unmeasured(stack) == before + 1


def test_the_events_of_an_engine_add_up_to_its_total(stack, tenant):
    """Also where callers disconnect: what they have used is in both."""
    stack.witness.faults(token_interval_s=0.01, output_tokens=OUTPUT_TOKENS)
    sdk = tenant.sdk()
    for stream in (False, True):
        list(chat(sdk, stream=stream, max_tokens=OUTPUT_TOKENS, n=2))
    for read in (1, 11):
        with chat(sdk, stream=True, max_tokens=OUTPUT_TOKENS) as stream:
            list(itertools.islice(stream, read))
    events = wait_until(lambda: len(tenant.events()) == 4 and tenant.events(), what="four usage events")
    assert all(event.kv_measured and event.kv_page_ms for event in events)
    counted = sum(event.kv_page_ms for event in events)
    wait_until(lambda: engine_page_ms(stack, tenant.id) == counted, what="engine = events")


def engine_page_ms(stack, tenant_id: str) -> int:
    """What the engine has counted of a tenant since its start, as it reports it."""
    newest = {
        hour.hour_ms: hour.kv_page_ms
        for _, fields in stack.client.xrange(redis_keys.ENGINE_USAGE)
        for hour in msgspec.json.decode(fields[b"report"], type=EngineUsageReport).hours
        if hour.tenant_id == tenant_id
    }
    return sum(newest.values())
