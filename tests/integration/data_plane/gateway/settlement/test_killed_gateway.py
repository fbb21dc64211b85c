"""After a gateway is killed, other gateways bill each of its requests once, by its last checkpoint."""

import contextlib
import signal
import threading

import httpx
import msgspec
import pytest

from core import redis_keys
from core.contracts.engine_usage import EndedRequest, EngineUsageReport
from core.contracts.usage import CHECKPOINT_TOKENS_MAX
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, chat

STREAMS = 4


def listen(client, streams: int, *, stream: bool = True) -> list[threading.Thread]:
    """As many answers, streamed or whole, that are read until they break."""

    def read() -> None:
        with contextlib.suppress(Exception):  # it is expected to break, in any way
            for _ in chat(client, stream=stream, max_tokens=1000):
                pass

    threads = [threading.Thread(target=read) for _ in range(streams)]
    for thread in threads:
        thread.start()
    return threads


def noted(stack, tenant, streams: int, *, tokens: int) -> bool:
    """Whether ``streams`` running requests have a checkpoint of at least ``tokens`` tokens."""
    running = stack.client.zrange(redis_keys.tenant_leases(tenant.id), 0, -1)
    counts = [
        stack.client.hget(redis_keys.reservation(tenant.id, one.decode()), "checkpoint_output") for one in running
    ]
    return len(counts) == streams and all(int(one or 0) >= tokens for one in counts)


def killed_under_streams(stack, tenant, name: str, *, stream: bool = True) -> None:
    """Start a gateway, let it checkpoint its requests, and kill it. The witness stops when its caller is gone."""
    with processes.gateway(stack.folder, stack.redis_url, name, **BRISK) as doomed:
        threads = listen(tenant.sdk(doomed.url), STREAMS, stream=stream)
        wait_until(lambda: noted(stack, tenant, STREAMS, tokens=50), what="the second checkpoint of each")
        doomed.process.kill()
        doomed.process.wait()
        for thread in threads:
            thread.join()


def named_by_engines(stack) -> dict[str, EndedRequest]:
    """The final counts that engines have reported by request id."""
    reports = [
        msgspec.json.decode(fields[b"report"], type=EngineUsageReport)
        for _, fields in stack.client.xrange(redis_keys.ENGINE_USAGE)
    ]
    return {request.request_id: request for report in reports for request in report.requests}


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
def test_each_orphan_is_billed_by_its_last_checkpoint(stack, tenant, stream):
    stack.witness.faults(token_interval_s=0.02, output_tokens=1000)
    before = set(stack.witness.journal())
    killed_under_streams(stack, tenant, "doomed", stream=stream)
    events = wait_until(lambda: len(tenant.events()) == STREAMS and tenant.events(), what="the orphans' bills")
    journal = {name: one for name, one in stack.witness.journal().items() if name not in before}
    assert {event.request_id for event in events} == set(journal)
    for event in events:
        produced = journal[event.request_id]
        assert (event.outcome, event.estimated) == ("gateway_gone", True)
        assert event.input_tokens == produced.prompt_tokens
        assert 0 <= produced.output_tokens - event.output_tokens <= CHECKPOINT_TOKENS_MAX
        assert event.kv_measured
        assert 0 < event.kv_page_ms <= produced.kv_page_ms
    ended = wait_until(lambda: set(journal) <= (named := named_by_engines(stack)).keys() and named, what="the engine")
    for name, produced in journal.items():
        one = ended[name]
        assert (one.tenant_id, one.prompt_tokens, one.output_tokens) == (
            tenant.id, produced.prompt_tokens, produced.output_tokens,
        )  # fmt: skip
    wait_until(tenant.holds_nothing, what="holds to return")
    used = sum(event.input_tokens + event.output_tokens for event in events)
    assert tenant.quota()["month_used"] == used
    leased = redis_keys.LEASED_TENANTS
    wait_until(lambda: stack.client.zscore(leased, tenant.id) is None, what="a sweep that finds nothing left")
    assert len(tenant.events()) == STREAMS
    assert stack.held_pages() == 0


def test_a_paused_gateway_that_resumes_after_its_orphans_were_billed_reports_the_exact_usage_once(stack, tenant):
    stack.witness.faults(token_interval_s=0.05, output_tokens=100)
    with processes.gateway(stack.folder, stack.redis_url, "asleep", **BRISK) as asleep:
        threads = listen(tenant.sdk(asleep.url), 3)
        wait_until(lambda: noted(stack, tenant, 3, tokens=1), what="a checkpoint of each")
        asleep.process.send_signal(signal.SIGSTOP)
        events = wait_until(lambda: len(tenant.events()) == 3 and tenant.events(), what="the orphans' bills")
        asleep.process.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
        headers = {"Authorization": f"Bearer {tenant.key}"}
        assert httpx.get(asleep.url + "/v1/models", headers=headers).status_code == 200
    orphans = {event.request_id for event in events}
    wait_until(lambda: len(tenant.events()) == 6, what="the whole of each")
    produced, exact = stack.witness.journal(), [event for event in tenant.events() if not event.estimated]
    assert {event.request_id: event.output_tokens for event in exact} == {
        name: produced[name].output_tokens for name in orphans
    }
    assert tenant.quota()["month_used"] == sum(event.input_tokens + event.output_tokens for event in exact)
    assert tenant.holds_nothing()
