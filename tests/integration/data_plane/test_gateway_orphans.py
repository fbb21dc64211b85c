"""A gateway that is killed under its streams: others bill each by its last checkpoint, once, and never too much."""

import contextlib
import signal
import threading
import time
from collections import Counter

import httpx

from core import keys
from core.contracts import CHECKPOINT_TOKENS_MAX
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, chat

STREAMS = 10


def listen(client, streams: int) -> list[threading.Thread]:
    """So many streams that are read until they break."""

    def read() -> None:
        with contextlib.suppress(Exception):  # it is to be cut, in whatever way
            for _ in chat(client, stream=True, max_tokens=1000):
                pass

    threads = [threading.Thread(target=read) for _ in range(streams)]
    for thread in threads:
        thread.start()
    return threads


def killed_under_streams(stack, tenant, name: str, *, after_s: float) -> None:
    """Start a gateway, let it serve streams for a while and kill it. The witness stops when its caller is gone."""
    with processes.gateway(stack.folder, stack.redis_url, name, **BRISK) as doomed:
        threads = listen(tenant.sdk(doomed.url), STREAMS)
        wait_until(lambda: len(stack.witness.journal()) >= STREAMS, what="streams to run")
        time.sleep(after_s)
        doomed.process.kill()
        doomed.process.wait()
        for thread in threads:
            thread.join()


def test_each_orphan_is_billed_by_its_last_checkpoint(stack, tenant):
    stack.witness.faults(token_interval_s=0.02, output_tokens=1000)
    before = set(stack.witness.journal())
    killed_under_streams(stack, tenant, "doomed", after_s=2.5)
    events = wait_until(lambda: len(tenant.events()) == STREAMS and tenant.events(), what="the orphans' bills")
    journal = {name: one for name, one in stack.witness.journal().items() if name not in before}
    assert {event.request_id for event in events} == set(journal)
    for event in events:
        produced = journal[event.request_id]
        assert (event.outcome, event.estimated) == ("gateway_gone", True)
        assert event.input_tokens == produced.prompt_tokens
        assert 0 <= produced.output_tokens - event.output_tokens <= CHECKPOINT_TOKENS_MAX
        assert event.kv_page_ms > 0
    wait_until(tenant.holds_nothing, what="holds to return")
    used = sum(event.input_tokens + event.output_tokens for event in events)
    assert tenant.quota()["month_used"] == used
    time.sleep(1)
    assert len(tenant.events()) == STREAMS
    assert int(stack.client.hget(keys.replica_held_pages("rep_one"), "total")) == 0


def test_a_stopped_gateway_that_wakes_after_its_orphans_were_billed_bills_the_rest_once(stack, tenant):
    stack.witness.faults(token_interval_s=0.05, output_tokens=100)
    with processes.gateway(stack.folder, stack.redis_url, "asleep", **BRISK) as asleep:
        threads = listen(tenant.sdk(asleep.url), 3)
        wait_until(lambda: tenant.quota().get("concurrent") == 3, what="streams to run")
        time.sleep(1.5)
        asleep.process.send_signal(signal.SIGSTOP)
        events = wait_until(lambda: len(tenant.events()) == 3 and tenant.events(), what="the orphans' bills")
        asleep.process.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
        headers = {"Authorization": f"Bearer {tenant.key}"}
        assert httpx.get(asleep.url + "/v1/models", headers=headers).status_code == 200
    orphans = {event.request_id for event in events}
    wait_until(lambda: len(tenant.events()) == 6, what="the rest to be billed")
    produced, billed = stack.witness.journal(), Counter()
    for event in tenant.events():
        billed[event.request_id.removesuffix(":rest")] += event.output_tokens
        assert event.estimated == (event.request_id in orphans)
    assert billed == {name: produced[name].output_tokens for name in orphans}
    assert tenant.quota()["month_used"] == sum(each.input_tokens + each.output_tokens for each in tenant.events())
    assert tenant.holds_nothing()
