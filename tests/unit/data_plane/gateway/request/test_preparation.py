"""What of the context and of the limits a prompt and its answer may take, and the words of the refusal."""

import json

import pytest
from msgspec.structs import replace

from core.errors import InvalidRequest
from data_plane.gateway.api.anthropic_connection import anthropic_message
from data_plane.gateway.api.openai_request import BodyLimits, Call, parse_call
from data_plane.gateway.errors import ContextLengthExceeded
from data_plane.gateway.request.preparation import output_ceiling, require_output_allowed
from tests.corpus.requests.bodies import CHAT, COMPLETION
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.gateway.tiny_tokenizer import tiny_route

PLAN = replace(AMPLE, context_tokens=100, output_tokens=90)
ROUTE = tiny_route(context_tokens=200)
LIMIT = "This model's maximum context length is 100 tokens."
OF_PLAN = "This is the limit of the plan; the model allows 200 tokens."


def call_of(**fields: object) -> Call:
    body = {**(COMPLETION if "prompt" in fields else CHAT), **fields}
    return parse_call("completion" if "prompt" in fields else "chat", json.dumps(body).encode(), BodyLimits(24, 256))


@pytest.mark.parametrize(
    ("prompt", "asked", "ceiling"), [(10, None, 90), (10, 50, 50), (90, None, 10), (99, 1, 1), (10, 90, 90)]
)
def test_max_tokens_is_the_smallest_of_caller_plan_and_context(prompt, asked, ceiling):
    require_output_allowed(prompt, call_of(max_tokens=asked), PLAN, ROUTE, plan=PLAN)
    assert output_ceiling(prompt, asked, PLAN, ROUTE) == ceiling


@pytest.mark.parametrize(
    ("tokens", "fields", "param", "openai", "anthropic"),
    [
        (
            150, {}, "messages",
            "However, your messages resulted in 150 tokens. Please reduce the length of the messages.",
            "prompt is too long: 150 tokens > 99 maximum.",
        ),
        (
            50, {"max_completion_tokens": 51}, "max_completion_tokens",
            "However, you requested 101 tokens (50 in the messages, 51 in the completion). Please reduce the ",
            "input length and `max_tokens` exceed context limit: 50 + 51 > 100, decrease input length or `max_tokens` ",
        ),
        (
            100, {"prompt": "hi", "max_tokens": 5}, "prompt",
            "However, you requested 105 tokens (100 in the prompt, 5 in the completion). ",
            "prompt is too long: 100 tokens > 99 maximum.",
        ),
    ],
    ids=["prompt", "both", "completions"],
)  # fmt: skip
def test_a_context_overflow_has_the_words_by_which_each_apis_clients_recognize_it(
    tokens, fields, param, openai, anthropic
):
    """LiteLLM, LangChain and others look for OpenAI's sentence or code; Claude Code parses the numbers of its own."""
    with pytest.raises(ContextLengthExceeded) as refusal:
        require_output_allowed(tokens, call_of(**fields), PLAN, ROUTE, plan=PLAN)
    error = refusal.value
    assert (error.code, error.param) == ("context_length_exceeded", param)
    for said, words in ((error.message, f"{LIMIT} {openai}"), (anthropic_message(error), anthropic)):
        assert said.startswith(words)
        assert said.endswith(OF_PLAN)


def test_an_overflow_names_the_models_context_and_the_keys_limit_as_such():
    with pytest.raises(ContextLengthExceeded) as refusal:
        require_output_allowed(100, call_of(), PLAN, tiny_route(context_tokens=100), plan=PLAN)
    assert "limit of" not in refusal.value.message
    with pytest.raises(ContextLengthExceeded, match="limit of the key; the model allows 200"):
        require_output_allowed(50, call_of(), replace(PLAN, context_tokens=50), ROUTE, plan=PLAN)


@pytest.mark.parametrize(("limits", "whose"), [(PLAN, "plan"), (replace(PLAN, output_tokens=89), "key")])
def test_max_tokens_above_the_limit_on_output_is_refused_and_not_lowered(limits, whose):
    with pytest.raises(InvalidRequest, match=f"is 91; the {whose} allows at most {limits.output_tokens}") as refusal:
        require_output_allowed(1, call_of(max_tokens=91), limits, ROUTE, plan=PLAN)
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", "max_tokens")
