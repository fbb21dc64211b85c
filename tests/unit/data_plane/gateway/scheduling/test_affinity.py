"""The keys that keep requests of a session, or with a shared prefix, together."""

import json

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.api.openai_request import BodyLimits, parse_call
from data_plane.gateway.scheduling.affinity import affinity_key, session_key


def call(**fields: object):
    body = {"model": "bot", "prompt": "hi", **fields}
    return parse_call("completion", json.dumps(body).encode(), BodyLimits(24, 256))


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ([], {}, ""),
        ([], {"user": "ann", "prompt_cache_key": "shared"}, "ann"),
        ([], {"prompt_cache_key": "shared", "user": "ann"}, "ann"),
        ([], {"prompt_cache_key": "shared", "user": ""}, "shared"),
        ([], {"user": None, "prompt_cache_key": "shared"}, "shared"),
        ([(b"x-session-id", b"s1")], {"user": "ann"}, "s1"),
        ([(b"x-session-id", b"")], {"user": "ann"}, "ann"),
    ],
)
def test_a_session_is_named_by_the_caller(headers, fields, expected):
    assert session_key(headers, call(**fields)) == expected


@pytest.mark.parametrize("name", ["user", "prompt_cache_key"])
@pytest.mark.parametrize("value", [7, ["ann"], "x" * 513])
def test_a_session_key_of_the_wrong_kind_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequest) as refusal:
        call(**{name: value})
    assert refusal.value.param == name


def test_a_session_header_has_a_bound():
    assert session_key([(b"x-session-id", b"x" * 256)], call()) == "x" * 256
    with pytest.raises(InvalidRequest, match="x-session-id") as refusal:
        session_key([(b"x-session-id", b"x" * 257)], call())
    assert refusal.value.param == "x-session-id"


def test_prompts_with_a_shared_prefix_have_one_affinity_within_a_tenant():
    system, chat = {"role": "system", "content": "You sell shoes. " * 50}, BodyLimits(24, 256)

    def turn(*messages: dict) -> str:
        body = json.dumps({"model": "bot", "messages": [system, *messages]}).encode()
        return affinity_key("tn_1", "", parse_call("chat", body, chat))

    first, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    assert turn(first) == turn(first, answer, {"role": "user", "content": "shoes?"}) != ""
    assert affinity_key("tn_1", "", call(prompt="a")) != affinity_key("tn_1", "", call(prompt="b"))
    assert affinity_key("tn_1", "", call(prompt="a")) != affinity_key("tn_2", "", call(prompt="a"))
    assert affinity_key("tn_1", "ann", call(prompt="a")) == affinity_key("tn_1", "ann", call(prompt="b"))
