"""An engine that hangs during a whole answer, holds its socket and its pages, and says that it is healthy."""

import openai
import pytest

from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

STALLED_S = 1


@pytest.fixture(scope="module")
def gateway_settings():
    return {"engine_stalled_s": STALLED_S, "abort_s": 1}


def test_a_whole_answer_leaves_an_engine_that_has_stopped_counting_tokens(stack, tenant):
    """The prompt's pages are held, so the engine's KV page-time grows while it hangs."""
    chat(tenant.sdk(), max_tokens=1)
    stalled = stack.gateway.metric("tenora_gateway_stalled_answers_total")
    stack.witness.faults(hang=True, deaf=True)
    with pytest.raises(openai.InternalServerError) as caught:
        chat(tenant.sdk(), max_tokens=1)
    assert (caught.value.status_code, caught.value.code) == (502, "replica_timeout")
    assert stack.gateway.metric("tenora_gateway_stalled_answers_total") == stalled + 1
    stack.witness.faults()
    wait_until(tenant.holds_nothing)
    assert len(tenant.events()) == 1
