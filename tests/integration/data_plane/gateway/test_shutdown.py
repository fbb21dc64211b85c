"""A gateway that is stopped or killed, and its leases: running requests end completely or are settled, and nothing
leaks.
"""

import signal
import time

import openai
import pytest

from tenora.stack.program import answers
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, assert_settled, chat, slowly


def test_sigterm_lets_running_streams_finish(stack, tenant):
    slowly(stack, output_tokens=50)
    with processes.gateway(stack.folder, stack.redis_url, "leaving", **BRISK) as leaving:
        streams = [chat(tenant.sdk(leaving.url), stream=True) for _ in range(5)]
        chunks = [iter(stream) for stream in streams]
        for one in chunks:
            next(one)
        leaving.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(openai.APIConnectionError):
            openai.OpenAI(base_url=leaving.url + "/v1", api_key=tenant.key, max_retries=0).models.list()
        for one in chunks:
            assert list(one)[-1].choices[0].finish_reason == "stop"
        assert leaving.process.wait(10) == 0
    assert [event.outcome for event in tenant.events()] == ["done"] * 5
    assert tenant.holds_nothing()


def test_a_gateway_that_gives_notice_accepts_requests_while_it_is_not_ready(stack, tenant):
    slowly(stack, output_tokens=1)
    with processes.gateway(stack.folder, stack.redis_url, "noticed", **BRISK, gateway_drain_notice_s=300) as noticed:
        client = tenant.sdk(noticed.url)
        noticed.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not answers(f"{noticed.url}/readyz"), what="the gateway to be not ready")
        assert not answers(noticed.metrics_url.replace("/metrics", "/readyz"))
        assert answers(f"{noticed.url}/livez")
        assert chat(client).choices[0].finish_reason == "stop"
        assert noticed.process.poll() is None
        noticed.process.send_signal(signal.SIGTERM)  # the notice ends, and the drain finds nothing to wait for
        assert noticed.process.wait(10) == 0


def test_the_drain_follows_the_notice_at_every_worker(stack):
    settings = {**BRISK, "gateway_drain_notice_s": 0.2, "workers": 2}
    with processes.gateway(stack.folder, stack.redis_url, "noticed", **settings) as noticed:
        noticed.process.send_signal(signal.SIGTERM)
        assert noticed.process.wait(10) == 0


def test_sigterm_settles_requests_that_do_not_end_in_time(stack, tenant):
    slowly(stack, output_tokens=1000)
    with processes.gateway(stack.folder, stack.redis_url, "hurried", **{**BRISK, "gateway_drain_s": 1}) as hurried:
        chunks = iter(chat(tenant.sdk(hurried.url), stream=True))
        next(chunks)
        hurried.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="stopping"):
            list(chunks)
        assert hurried.process.wait(10) == 0
    assert_settled(tenant, "timeout")
    # Billing has not recorded it, so the remaining gateway keeps it now, and does not bill it a second time.
    wait_until(lambda: len(list((stack.folder / "journal").rglob("*.lock"))) == 1, what="the journal to be taken over")
    assert len(tenant.events()) == 1


def test_a_request_longer_than_its_lease_keeps_it(stack, tenant):
    slowly(stack, output_tokens=300)  # six seconds, with leases of two
    stream = chat(tenant.sdk(), stream=True)
    chunks = iter(stream)
    next(chunks)
    time.sleep(BRISK["lease_s"] + 0.2)
    other = stack.tenant()
    chat(other.sdk(), max_tokens=1)  # another reservation on the replica looks for expired ones
    assert tenant.quota()["concurrent"] == 1
    assert stack.held_pages() > 0
    list(chunks)
    assert_settled(tenant, "done")
