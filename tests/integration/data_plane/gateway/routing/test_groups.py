"""Groups of models at the gateway: who answers, what says so, and what a caller sees of a group that cannot answer."""

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.integration.data_plane.conftest import assert_settled, chat
from tests.integration.data_plane.gateway.request.test_request_log import only_row

SMALL, LARGE = "tiny-small", "tiny-chat"


@pytest.fixture(scope="module")
def witnesses():
    """A replica of each of two base models."""
    return {"rep_one": {}, "rep_small": {"base_model": SMALL}}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"request_log_refusals_s": 0.05}


@pytest.fixture(autouse=True)
def small(stack):
    stack.publisher.base_model(tiny_route(SMALL))


def listed(client: openai.OpenAI) -> list[str]:
    return [model.id for model in client.models.list()]


def known(tenant, *names: str) -> openai.OpenAI:
    """A client of the tenant, once the gateway lists these names."""
    client = tenant.sdk()
    wait_until(lambda: set(names) <= set(listed(client)), what="the models to be listed")
    return client


def asked(client: openai.OpenAI, content: str = "hi", model: str = "auto", **options: object):
    """The answer, and who gave it by the headers."""
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": content}], **options
    )
    return raw.parse(), raw.headers.get("x-model-used"), raw.headers.get("x-route-reason")


@pytest.mark.parametrize("stream", [False, True])
def test_headers_body_event_and_log_say_which_member_answered(stack, tenant, stream):
    adapter = stack.publisher.adapter(tenant.id, "bot")
    stack.publisher.group(tenant.id, "auto", "weighted", "bot")
    answer, used, reason = asked(known(tenant, "auto"), stream=stream)
    models = {part.model for part in answer} if stream else {answer.model}
    assert (models, used, reason) == ({"bot"}, "bot", "only_member")
    assert tenant.event().adapter_id == adapter.adapter_id
    row = only_row(stack, tenant)
    assert (row.model, row.model_used, row.route_reason) == ("auto", "bot", "only_member")


def test_a_request_without_a_group_has_no_headers_of_one(tenant):
    _, used, reason = asked(tenant.sdk(), model=LARGE)
    assert (used, reason) == (None, None)


def test_a_member_that_dies_in_mid_stream_ends_the_answer_and_no_other_follows(stack, tenant):
    stack.publisher.group(tenant.id, "auto", "classified", SMALL, LARGE)
    client = known(tenant, "auto", SMALL)
    stack.witnesses["rep_small"].faults(cut_after=3)
    since = len(stack.witness.received())
    with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
        list(asked(client, "Say hi.", stream=True)[0])
    event, _ = assert_settled(tenant, "replica_gone", stack.witnesses["rep_small"])
    assert (event.base_model, event.output_tokens) == (SMALL, 3)
    assert len(stack.witness.received()) == since
    stack.witnesses["rep_small"].faults(status=500)
    assert asked(client, "Say hi.")[1:] == (LARGE, "failed"), "before its first byte another one answers"


def test_another_tenants_group_is_as_none_and_the_platforms_is_for_all(stack, tenant):
    other = stack.tenant()
    stack.publisher.group(other.id, "auto", "weighted", LARGE)
    client = tenant.sdk()
    with pytest.raises(openai.NotFoundError):
        chat(client, model="auto")
    stack.publisher.adapter(tenant.id, LARGE)  # no member of the platform's group, whatever its name
    stack.publisher.group("", "shared", "weighted", LARGE)
    known(tenant, "shared")
    assert asked(client, model="shared")[0].model == LARGE
    assert tenant.event().adapter_id is None
    stack.publisher.put("groups", "/shared", None)
