"""Aliases, revisions and sessions through a real gateway, and the engine middleware's reports on adapter loads."""

import json

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures.gateway.published import newest_name
from tests.fixtures.witness.answer import fingerprint
from tests.integration.data_plane.conftest import Tenant, chat

LOAD = {"tier": "store", "load_ms": 412, "stall_ms": 9}


def names(client: openai.OpenAI) -> list[str]:
    return [model.id for model in client.models.list()]


def of_revision(answer) -> str:
    """The fingerprint of the engine name that answered."""
    return answer.choices[0].message.content.split(" ")[0]


def test_an_adapter_is_called_by_its_name_its_aliases_and_its_revisions(stack, tenant):
    route = stack.publisher.adapter(tenant.id, "bot", revisions=3)
    first, second, third = route.revisions
    route = stack.publisher.alias(route, "prod", {second: 1})
    route = stack.publisher.alias(route, "canary", {third: 1})
    other = stack.tenant()
    client, others = tenant.sdk(), other.sdk()
    wait_until(lambda: names(client) == ["bot", "bot:canary", "bot:prod", "tiny-chat"], what="the aliases to be listed")
    assert names(others) == ["tiny-chat"]
    called = {"bot": second, "bot:prod": second, "bot:canary": third, f"bot@{first}": first}
    for model, revision in called.items():
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=[{"role": "user", "content": "hi"}]
        )  # fmt: skip
        answer = raw.parse()
        assert of_revision(answer) == fingerprint(route.engine_name(revision))
        assert (answer.model, raw.headers["x-tenora-revision"]) == (model, revision)
        with pytest.raises(openai.NotFoundError):
            chat(others, model=model)
    events = wait_until(lambda: len(tenant.events()) == 4 and tenant.events(), what="four usage events")
    assert [event.revision_id for event in events] == list(called.values())
    stack.publisher.alias(route, "prod", None)
    wait_until(lambda: "bot:prod" not in names(client))
    assert of_revision(chat(client, model="bot")) == fingerprint(route.engine_name(third))


def test_a_session_stays_with_its_revision_of_a_weighted_alias(stack, tenant):
    route = stack.publisher.adapter(tenant.id, "bot", revisions=2)
    stack.publisher.alias(route, "prod", dict.fromkeys(route.revisions, 50))
    client = tenant.sdk()
    wait_until(lambda: "bot:prod" in names(client))
    for number in range(6):
        name = f"session-{number}"
        same = [{"extra_headers": {"x-session-id": name}}, {"user": name}, {"prompt_cache_key": name}]
        assert len({of_revision(chat(client, model="bot", **session)) for session in same}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_middlewares_load_report_is_metered_and_never_shown(stack, tenant, stream):
    stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in names(client))
    stack.witness.faults(load=json.dumps(LOAD))
    answer = httpx.post(
        f"{stack.gateway.url}/v1/chat/completions",
        json={"model": "bot", "messages": [{"role": "user", "content": "hi"}], "stream": stream},
        headers={"authorization": f"Bearer {tenant.key}"},
    )
    assert answer.status_code == 200
    assert "load_ms" not in answer.text
    assert "stall_ms" not in answer.text
    assert "x-tenora-load" not in answer.headers
    assert not any(line.startswith(":") for line in answer.text.splitlines())
    event = tenant.event()
    assert (event.outcome, event.adapter_tier, event.adapter_load_ms, event.stall_ms) == ("done", "store", 412, 9)
    assert event.duration_ms >= (event.first_token_ms or 0)
    assert (event.first_token_ms is not None) == stream


def test_a_base_model_has_no_tier_and_its_engine_receives_no_adapter_name(stack, tenant):
    route = stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in names(client))
    chat(client, model="tiny-chat", extra_headers={"x-tenora-adapter": "ad_victim@00"})
    chat(client, model="bot", extra_headers={"x-tenora-adapter": "ad_victim@00"})
    events = wait_until(lambda: len(tenant.events()) == 2 and tenant.events())
    received = {one["received"]: one for one in stack.witness.received()}
    sent = [{name.lower(): value for name, value in received[event.request_id]["headers"].items()} for event in events]
    assert [headers.get("x-tenora-adapter") for headers in sent] == [None, newest_name(route)]
    assert [headers.get("x-tenora-tenant") for headers in sent] == [tenant.id, tenant.id]
    assert events[0].adapter_tier is None


@pytest.mark.parametrize(("retry_after", "shown"), [("7", "7"), ("soon", "1"), ("999999", "300"), ("0", "1")])
def test_an_adapter_that_is_still_loading_is_a_503_with_retry_after(stack, tenant, retry_after, shown):
    stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in names(client))
    stack.witness.faults(loading=retry_after, times=1)
    with pytest.raises(openai.InternalServerError) as refused:
        chat(client, model="bot")
    assert (refused.value.status_code, refused.value.code) == (503, "adapter_loading")
    assert refused.value.response.headers["retry-after"] == shown
    assert refused.value.response.headers["x-should-retry"] == "true"
    assert refused.value.response.json()["error"]["eta_s"] == 7
    assert "secret" not in refused.value.response.text
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []
    assert chat(client, model="bot").choices


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [("adapter_cache_full", 503, "adapter_cache_full"), ("secret_code", 502, "replica_failed")],
)
def test_only_a_known_code_says_why_a_replica_cannot_load_an_adapter(stack, tenant, code, status, shown):
    stack.publisher.adapter(tenant.id, "bot")
    client = tenant.sdk()
    wait_until(lambda: "bot" in names(client))
    stack.witness.faults(loading="999", loading_code=code)
    with pytest.raises(openai.InternalServerError) as refused:
        chat(client, model="bot")
    assert (refused.value.status_code, refused.value.code) == (status, shown)
    assert refused.value.response.headers.get("retry-after") == ("300" if status == 503 else None)
    assert "secret" not in refused.value.response.text
    wait_until(tenant.holds_nothing)
    assert tenant.events() == []


def test_a_key_with_models_lists_and_calls_only_these_and_the_members_of_its_groups(stack, tenant):
    for name in ("bot", "other"):
        stack.publisher.adapter(tenant.id, name)
    stack.publisher.group(tenant.id, "auto", "weighted", "tiny-chat")
    narrow = Tenant(stack, tenant.id, stack.publisher.key(tenant.id, models=("bot", "auto"))).sdk()
    wait_until(lambda: names(narrow) == ["bot", "auto"], what="the models of the key")
    assert [chat(narrow, model=model).model for model in ("bot", "auto")] == ["bot", "tiny-chat"]
    for model in ("other", "tiny-chat", f"other@{'x' * 5}"):
        with pytest.raises(openai.NotFoundError):
            chat(narrow, model=model)
    with pytest.raises(openai.NotFoundError, match="This key may call: bot, auto"):
        narrow.models.retrieve("other")
