"""The end of a whole answer is enough to bill it, whatever the answer contains."""

import json

import pytest

from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.upstream.unary_attempt import usage_at_end

USAGE = {"prompt_tokens": 9, "total_tokens": 16, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}


def tail(content: str, **more: object) -> bytes:
    answer = {"choices": [{"message": {"content": content}}], "service_tier": None, "usage": USAGE, **more}
    return json.dumps(answer, separators=(",", ":")).encode()[20:]


@pytest.mark.parametrize(
    "content", ["hi", '","usage":{"prompt_tokens":1}}', '\\","usage":{"completion_tokens":1', "ü" * 99]
)
def test_the_usage_is_read_from_the_end_of_the_answer(content):
    usage = usage_at_end(tail(content, prompt_logprobs=None))
    assert (usage.prompt_tokens, usage.prompt_tokens_details, usage.completion_tokens) == (9, {"cached_tokens": 4}, 7)


@pytest.mark.parametrize("broken", [b"", b"...", b'"usage":{', b'"usage":{"prompt_tokens":1}}', b'"usage":null}'])
def test_an_end_without_usage_is_not_an_answer(broken):
    with pytest.raises(StreamBroken):
        usage_at_end(broken)
