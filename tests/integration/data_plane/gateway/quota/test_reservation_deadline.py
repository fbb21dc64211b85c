"""The default deadline of a reservation: 50 ms, however long Redis is silent."""

import signal
import time

import openai
import pytest

from data_plane.gateway.settings import GatewaySettings
from tests.integration.data_plane.conftest import BRISK, chat, separate_stack

pytestmark = pytest.mark.quiet

DEADLINE_S = GatewaySettings.model_fields["reserve_deadline_ms"].default / 1000
MARGIN_S = 0.06  # reading, counting and answering on a machine with other load


@pytest.fixture
def own(tmp_path):
    with separate_stack(tmp_path, **BRISK, reserve_deadline_ms=round(DEADLINE_S * 1000)) as running:
        yield running


def test_a_silent_redis_delays_a_caller_by_the_deadline_at_most(own):
    stack, valkey = own[0], own[1]
    client = stack.tenant().sdk()
    for _ in range(5):
        chat(client, max_tokens=1)
    took_s, codes = [], set()
    valkey.send_signal(signal.SIGSTOP)
    try:
        for _ in range(10):
            began = time.monotonic()
            with pytest.raises(openai.InternalServerError) as caught:
                chat(client, max_tokens=1)
            took_s.append(time.monotonic() - began)
            codes.add(caught.value.code)
    finally:
        valkey.send_signal(signal.SIGCONT)
    assert codes == {"quota_unavailable"}
    assert min(took_s) >= DEADLINE_S  # the caller waited for Redis
    assert sorted(took_s)[len(took_s) // 2] < DEADLINE_S + MARGIN_S
