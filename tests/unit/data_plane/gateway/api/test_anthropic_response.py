"""Anthropic's answers: events that form the whole message, true stop reasons, and pages of models."""

import json

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from data_plane.gateway.api.anthropic_response import Events, message, model_info, model_page

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def chunk(delta: dict, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    body = {"id": "chatcmpl-req_1", "model": "m", "choices": [choice], "usage": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@given(
    pieces=st.lists(texts, max_size=5),
    calls=st.lists(st.dictionaries(texts, st.integers() | texts, max_size=3), max_size=3),
    reason=st.sampled_from(["stop", "length", "tool_calls"]),
    stopped_by=st.none() | texts,
    cuts=st.sets(st.integers(0, 30)),
    ended_early=st.none() | st.integers(0, 9),
)
def test_the_events_of_a_stream_form_the_whole_message(pieces, calls, reason, stopped_by, cuts, ended_early):
    arguments = [json.dumps(call) for call in calls]
    arguments[-1:] = [text[:ended_early] for text in arguments[-1:]]
    chunks = [chunk({"role": "assistant", "content": ""}), *[chunk({"content": piece}) for piece in pieces]]
    for index, text in enumerate(arguments):
        named = {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": text[:1]}}
        chunks += [
            chunk({"tool_calls": [named]}),
            chunk({"tool_calls": [{"index": index, "function": {"arguments": text[1:]}}]}),
        ]
    chunks.append(chunk({}, finish_reason=reason, stop_reason=stopped_by))
    groups = [b""]
    for index, each in enumerate([*chunks, b"data: [DONE]\n\n"]):
        groups = [*groups, each] if index in cuts else [*groups[:-1], groups[-1] + each]
    events = Events()
    wire = b"".join(events.feed(group) for group in groups)
    function_calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": text}} for n, text in enumerate(arguments)]
    whole = {
        "id": "chatcmpl-req_1", "model": "m",
        "choices": [{"message": {"content": "".join(pieces), "tool_calls": function_calls}, "finish_reason": reason,
                     "stop_reason": stopped_by}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }  # fmt: skip
    assert put_together(wire) == json.loads(message(json.dumps(whole).encode()))


@pytest.mark.parametrize(
    ("finish_reason", "stopped_by", "calls", "stop"),
    [
        ("stop", None, [], ("end_turn", None)),
        ("stop", 151645, [], ("end_turn", None)),
        ("stop", "END", [], ("stop_sequence", "END")),
        ("length", None, [], ("max_tokens", None)),
        ("content_filter", None, [], ("refusal", None)),
        ("tool_calls", None, ["{}"], ("tool_use", None)),
        ("tool_calls", "END", ["{}"], ("tool_use", None)),
        ("stop", None, ["{}"], ("tool_use", None)),  # a named tool
        ("stop", "END", ['{"a": "b'], ("stop_sequence", "END")),
        ("length", None, ['{"a": "b'], ("max_tokens", None)),
    ],
)
def test_the_stop_reason_is_tool_use_for_a_call_that_nothing_cut(finish_reason, stopped_by, calls, stop):
    function_calls = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": text}} for text in calls]
    ended = {"finish_reason": finish_reason, "stop_reason": stopped_by}
    choice = {"message": {"content": "", "tool_calls": function_calls}, **ended}
    whole = json.loads(message(json.dumps({"id": "a", "model": "m", "choices": [choice], "usage": {}}).encode()))
    streamed = Events().feed(chunk({"tool_calls": function_calls}) + chunk({}, **ended) + b"data: [DONE]\n\n")
    for answer in (whole, put_together(streamed)):
        assert (answer["stop_reason"], answer["stop_sequence"]) == stop


def put_together(wire: bytes) -> dict:
    """The message that an SDK builds from the events, which must arrive in order."""
    found: dict = {}
    partial = ""
    for block in wire.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "message_start":
                assert not found
                found = event["message"]
            case "content_block_start":
                assert event["index"] == len(found["content"])
                found["content"].append(event["content_block"])
                partial = ""
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                found["content"][event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta":
                partial += event["delta"]["partial_json"]
            case "content_block_stop" if found["content"][event["index"]]["type"] == "tool_use":
                found["content"][event["index"]]["input"] = jiter.from_json(
                    partial.encode() or b"{}", partial_mode=True
                )
            case "message_delta":
                assert found["usage"] == {**event["usage"], "output_tokens": 0}
                found |= {**event["delta"], "usage": event["usage"]}
    assert wire.endswith(b'data: {"type":"message_stop"}\n\n')
    return found


def entries(*ids: str) -> list[dict]:
    return [
        {"id": each, "created": 1_767_225_600, "max_model_len": 2048, "limits": {"output_tokens": 512}} for each in ids
    ]


def test_a_model_has_anthropics_shape():
    assert model_info(*entries("bot")) == {
        "type": "model", "id": "bot", "display_name": "bot", "lifecycle": "active",
        "created_at": "2026-01-01T00:00:00Z", "max_input_tokens": 2048, "max_tokens": 512,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "page", "has_more"),
    [
        ("", "abcde", False),
        ("beta=true&limit=2", "ab", True),
        ("limit=2&after_id=b", "cd", True),
        ("limit=2&after_id=c", "de", False),
        ("after_id=e", "", False),
        ("limit=2&before_id=d", "bc", True),
        ("limit=9&before_id=c", "ab", False),
    ],
)
def test_models_come_in_pages(query, page, has_more):
    found = model_page(entries(*"abcde"), query)
    assert [each["id"] for each in found["data"]] == list(page)
    assert (found["has_more"], found["first_id"], found["last_id"]) == (
        has_more,
        *((page[0], page[-1]) if page else (None, None)),
    )


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=" + "9" * 5000, "after_id=z", "before_id=z"]
)
def test_a_page_that_does_not_exist_is_refused_by_its_parameter(query):
    with pytest.raises(InvalidRequest) as caught:
        model_page(entries(*"abcde"), query)
    assert caught.value.param == query.partition("=")[0]
