"""Whole answers are rebuilt from known keys, and large ones without decoding what is only passed on."""

import json
import time

import msgspec
import pytest

from data_plane.gateway.api import openai_response

ENTRY = {
    "token": " word", "logprob": -0.125, "bytes": [32, 119],
    "top_logprobs": [{"token": " w", "logprob": -0.5, "bytes": [32]}] * 5,
}  # fmt: skip


def answer(**choice: object) -> bytes:
    return json.dumps(
        {
            "id": "engine's", "object": "chat.completion", "created": 7, "model": "engine's",
            "choices": [{"index": 0, "finish_reason": "stop", **choice}], "system_fingerprint": "engine's",
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        }
    ).encode()  # fmt: skip


def shown(raw: bytes) -> dict:
    decoded = openai_response.decode(raw)
    counted = openai_response.counts(decoded.usage, prompts=(9,))
    return json.loads(openai_response.for_caller(decoded, counted, response_id="ours", shown_name="bot"))


@pytest.mark.parametrize("content", ["hi", "", 'ünï "quoted" \n 🏔️', None])
def test_a_message_keeps_its_content_and_loses_unknown_and_empty_keys(content):
    message = {"role": "assistant", "content": content, "tool_calls": None, "refusal": None, "annotations": None}
    (choice,) = shown(answer(message=message, token_ids=[1, 2], logprobs=None, stop_reason=None))["choices"]
    assert choice == {
        "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content},
        "logprobs": None, "stop_reason": None,
    }  # fmt: skip


def test_tool_calls_and_reasoning_are_passed_on():
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "because"}
    (choice,) = shown(answer(message=message))["choices"]
    assert choice["message"] == message


def test_a_completion_keeps_its_text_and_logprobs():
    (choice,) = shown(answer(text="hi", logprobs={"tokens": ["hi"]}, stop_reason="\n"))["choices"]
    assert choice == {
        "index": 0,
        "finish_reason": "stop",
        "text": "hi",
        "logprobs": {"tokens": ["hi"]},
        "stop_reason": "\n",
    }


def test_names_and_counts_are_ours():
    whole = shown(answer(text="hi"))
    assert (whole["id"], whole["model"], whole["created"]) == ("ours", "bot", 7)
    assert whole["usage"]["total_tokens"] == 11
    assert "system_fingerprint" not in whole


@pytest.mark.parametrize(
    ("prompts", "report", "sequences", "cached"),
    [
        ((8,), None, [(9, 2)], 4),  # the engine's count, not ours
        ((8,), "[[5,3,1]]", [(9, 2)], 4),
        ((4, 5), "[[4,1,1],[5,3,1]]", [(4, 1), (5, 1)], 4),
        ((4, 5, 6), None, [(4, 1), (5, 1)], 4),
        ((4, 5), "nonsense", [(4, 1), (5, 1)], 4),
    ],
)
def test_the_engine_counts_one_sequence_and_its_middleware_each_of_several(prompts, report, sequences, cached):
    usage = openai_response.Usage(9, 2, 11, {"cached_tokens": 4})
    counted = openai_response.counts(usage, prompts=prompts, report=report)
    assert (counted.sequences, counted.cached_tokens) == (sequences, cached)


@pytest.mark.parametrize("broken", [b"{}", b"[]", answer(text="hi")[:-9], answer(index="x"), answer(finish_reason=1)])
def test_another_shape_is_refused(broken):
    with pytest.raises(msgspec.MsgspecError):
        openai_response.decode(broken)


def test_a_large_answer_costs_a_fraction_of_what_its_objects_would_cost():
    """8 MiB with log-probabilities take some 12 ms of the event loop. These are 1.5 MiB."""
    raw = answer(message={"role": "assistant", "content": "x" * 25_000}, logprobs={"content": [ENTRY] * 5000})

    def best_s(work) -> float:
        taken = []
        for _ in range(3):
            began = time.thread_time()
            work()
            taken.append(time.thread_time() - began)
        return min(taken)

    def rebuild() -> None:
        decoded = openai_response.decode(raw)
        counted = openai_response.counts(decoded.usage, prompts=(9,))
        openai_response.for_caller(decoded, counted, response_id="ours", shown_name="bot")

    assert best_s(rebuild) < 0.35 * best_s(lambda: msgspec.json.encode(msgspec.json.decode(raw)))
