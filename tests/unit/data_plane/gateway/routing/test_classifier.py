"""The rule ``classified``: what asks for the better member, what the model reads, and the shipped weights."""

import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing.training import read_prompts, train
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.routing.classifier import (
    BUCKETS,
    LONG_CHARS,
    LinearModel,
    features,
    reason_for_better,
    words_of,
)


def call_of(*contents: str, **changes) -> Call:
    messages = [{"role": "user", "content": content} for content in contents]
    fields = {"tools": None, "fields": {}, "n": 1, **changes}
    return Call(kind="chat", model="auto", messages=messages, prompts=None, max_tokens=None, stream=False,
                usage_shown="none", **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "priority", "reason"),
    [
        ({}, False, None),
        ({}, True, "plan"),
        ({"tools": [{"type": "function"}]}, False, "tools"),
        ({"fields": {"response_format": {"type": "json_schema"}}}, False, "schema"),
        ({"fields": {"response_format": {"type": "text"}}}, False, None),
    ],
)
def test_what_asks_for_the_better_member_whatever_the_words_are(changes, priority, reason):
    assert reason_for_better(call_of("hi", **changes), is_priority=priority) == reason


def test_a_long_conversation_asks_for_the_better_member():
    assert reason_for_better(call_of("a" * LONG_CHARS), is_priority=False) is None
    assert reason_for_better(call_of("a" * LONG_CHARS, "b"), is_priority=False) == "length"


def test_the_words_are_those_of_all_turns_of_the_user():
    call = call_of("prove the theorem", "commit it")
    call.messages.insert(1, {"role": "assistant", "content": "done"})
    assert words_of(call) == "prove the theorem\ncommit it"
    assert len(words_of(call_of("a" * 9_000, "end"))) <= 4_001
    assert words_of(call_of("a" * 9_000, "end")).endswith("a\nend")


@given(st.text(max_size=300))
def test_features_are_buckets_of_any_text_and_never_empty(text):
    found = features(text)
    assert found == sorted(set(found))
    assert found
    assert all(0 <= bucket < BUCKETS for bucket in found)


@pytest.mark.parametrize(
    "text", ["a" * 4_000, "def " * 1_000, "((" * 2_000, "SELECT " * 571, "class " * 666, "; " * 2_000]
)
def test_no_text_takes_long(text, promised_s):
    def taken_s() -> float:
        began = time.thread_time()
        features(text)
        return time.thread_time() - began

    assert min(taken_s() for _ in range(9)) < promised_s(0.003), "also where the machine is slow for a moment"


@pytest.mark.parametrize(
    ("code", "text"),
    [(True, "what does f(x) do"), (True, "if (a) {\n"), (True, "```\nx\n```"), (False, "a plain text")],
)
def test_code_is_a_feature(code, text):
    assert (zlib.crc32(b"code") % BUCKETS in features(text)) is code


def test_the_model_learns_the_labels():
    model, prompts = train(read_prompts()), read_prompts()
    right = sum((model.probability(prompt.text) >= 0.5) is prompt.small_suffices for prompt in prompts)
    assert right / len(prompts) > 0.95


def test_the_shipped_weights_are_those_of_the_command():
    """``python -m benchmarks.routing train`` writes them."""
    shipped, trained = LinearModel.load(), train(read_prompts())
    differences = [abs(shipped.probability(text) - trained.probability(text)) for text, _ in read_prompts()]
    assert max(differences) < 0.02
