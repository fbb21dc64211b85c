"""Callers whose machine or network disappears silently: the kernel detects it, and the engine gets an abort at once."""

import time

import pytest

from tests.conftest import wait_until
from tests.fixtures.faults import callers

SILENT_S = 2
KERNEL_S = 1  # its timers count in retransmissions, and are late by up to half of one


@pytest.fixture(scope="module")
def gateway_settings():
    return {"client_tcp_timeout_s": SILENT_S}


def test_a_caller_that_acknowledges_nothing_counts_as_disconnected_and_pays_for_the_produced_tokens(
    stack, tenant, promised_s
):
    stack.witness.faults(token_interval_s=0.02, output_tokens=1000)
    tenant.sdk()
    asked = callers.request(tenant.key, stream=True, max_tokens=1000)
    with callers.callers(stack.gateway.url, 3, asked, receive_bytes=65_536) as calls:
        names = {callers.begun(one) for one in calls}
        for one in calls:
            callers.vanish(one)
        vanished_at = time.monotonic()
        events = wait_until(
            lambda: len(tenant.events()) == 3 and tenant.events(), what="the bills of those who are gone"
        )
        gone_s = time.monotonic() - vanished_at
    assert SILENT_S <= gone_s < SILENT_S + KERNEL_S + promised_s(1)
    produced = stack.witness.journal()
    assert {event.request_id: event.outcome for event in events} == dict.fromkeys(names, "client_gone")
    assert all(event.output_tokens == produced[event.request_id].output_tokens for event in events)
    assert tenant.holds_nothing()


def test_a_caller_that_waits_for_a_whole_answer_is_probed(stack, tenant):
    stack.witness.faults(token_interval_s=0.05, output_tokens=1000)
    tenant.sdk()
    with callers.callers(stack.gateway.url, 2, callers.request(tenant.key, max_tokens=120)) as calls:
        wait_until(lambda: tenant.quota().get("concurrent") == 2, what="both to run")
        callers.vanish(calls[0])
        event = tenant.event()
        assert event.outcome == "client_gone"
        assert event.output_tokens == stack.witness.journal()[event.request_id].output_tokens < 120
        calls[1].settimeout(30)
        assert b"200 OK" in calls[1].recv(100)  # it has read nothing for six seconds and is still connected
    assert {event.outcome for event in tenant.events()} == {"client_gone", "done"}
