"""The playground: its calls are those of a key of the member, and its answers come whole or as one stream.

What stands for the gateway here is a small server that answers as one does; a real one answers in `make demo-serving`'s
stack, where the page was tried by hand.
"""

import json

import pytest

from control_plane.settings import ConsoleSettings, WebSettings
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.control_plane.browser import join
from tests.fixtures.control_plane.streaming_gateway import StreamingGateway, streaming_gateway


@pytest.fixture
def gateway():
    with streaming_gateway() as url:
        yield url


@pytest.fixture
def settings(gateway, postgres_settings, redis_settings, s3_settings):
    return control_settings(
        postgres_settings,
        redis_settings,
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        console=ConsoleSettings(gateway_url=gateway),
    )


@pytest.fixture
def person(api):
    return join(api, api.tenant(), "developer")


def run(browser, **fields):
    browser.open("/playground").raise_for_status()
    return browser.send("Run", **({"user": "Who are you?", "model0": "first", "model1": "second"} | fields))


def test_models_answer_side_by_side_and_a_failure_is_its_panes_own(person):
    run(person.browser, model1="none").raise_for_status()
    assert "I am first" in person.browser.text
    assert "model: there is no such model. model_not_found" in person.browser.text
    assert "/requests/req_of_the_test" in person.browser.last.text


def test_calls_are_made_with_one_limited_key_of_the_member_that_pages_never_show(person, api):
    run(person.browser)
    run(person.browser)
    secret = StreamingGateway.keys[0]
    assert set(StreamingGateway.keys) == {secret}
    key = person.browser.open("/keys").text
    assert "Playground of Ana" in key
    assert secret not in key
    assert secret not in run(person.browser).text
    own = api.client(secret).get("/api/v1/me").json()
    assert own["scopes"] == ["inference"]


def test_a_revoked_key_is_made_again(person):
    run(person.browser)
    person.browser.open("/keys")
    person.browser.send("Revoke key")
    run(person.browser).raise_for_status()
    assert "I am first" in person.browser.text
    assert len(set(StreamingGateway.keys)) == 2


def test_a_script_gets_all_panes_as_one_stream(person):
    person.browser.open("/playground")
    fields = [("model0", "first"), ("model1", "second"), ("user", "Who are you?")]
    answer = person.browser.post("/playground", fields, accept="application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    whole = {line["pane"]: line for line in lines if line["whole_ms"] is not None}
    assert {number: pane["text"] for number, pane in whole.items()} == {0: "I am first", 1: "I am second"}
    assert whole[0]["usage"] == {"prompt_tokens": 9, "completion_tokens": 3}
    assert len(lines) > 2


@pytest.mark.parametrize(
    "fields",
    [{"model0": "", "model1": ""}, {"max_tokens": "many"}, {"temperature": "warm"}],
    ids=lambda each: next(iter(each)),
)
def test_a_wrong_field_is_named_and_nothing_is_called(person, fields):
    assert run(person.browser, **fields).status_code == 400
    assert StreamingGateway.keys == []
    assert "Who are you?" in person.browser.last.text


def test_a_role_that_calls_no_model_has_no_playground(api):
    viewer = join(api, api.tenant(), "viewer")
    assert viewer.browser.open("/playground").status_code == 403
