"""The bounded parser of tool calls gives what vLLM's own parser gives for whole calls, and the same for a stream and a
whole answer wherever it ends. VLLM uses it.
"""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures.late_import import LateModule

tool_parser = LateModule("data_plane.engine.tool_parser")
hermes = LateModule("vllm.tool_parsers.hermes_tool_parser")
manager = LateModule("vllm.tool_parsers.abstract_tool_parser")

WELL_FORMED = st.builds(
    lambda name, arguments, spacing: spacing.format(f'{{"name": "{name}", "arguments": {arguments}}}'),
    st.sampled_from(["f", "get_weather", "arguments"]),
    st.sampled_from(
        ["{}", '{"x": 1}', '{"x": "}<tool_call>"}', '{ "a": [ {"b": null} ], "c": "\\\\\\"" }', '"text"', "[1]"]
    ),
    st.sampled_from(
        ["<tool_call>{}</tool_call>", "<tool_call>\n{}\n</tool_call>", "<tool_call> {} </tool_call>\n", "<tool_call>{}"]
    ),
)
FRAGMENTS = st.sampled_from(
    [
        "Hello ",
        "<",
        "<tool",
        "\n",
        "  ",
        "}",
        "{",
        '"',
        "</tool_call>",
        "<tool_call>",
        '"arguments"',
        ":",
        '"name"',
        "x",
    ]
)


NO_TOKENS = SimpleNamespace()
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def whole(parser, text: str) -> tuple[str, list[tuple[str, str]]]:
    found = parser.extract_tool_calls(text, request=None)
    return found.content or "", [(call.function.name, call.function.arguments) for call in found.tool_calls]


def streamed(parser, text: str, sizes: list[int]) -> Iterator[tuple[int, str, list[tuple[str, str]]]]:
    """The content and the calls that OpenAI's SDK has joined after each chunk of ``text``, with the chunk's end."""
    content, calls, end, turn = "", {}, 0, 0
    while end < len(text):
        before, end = text[:end], min(len(text), end + sizes[turn % len(sizes)])
        turn += 1
        delta = parser.extract_tool_calls_streaming(before, text[:end], text[len(before) : end], [], [], [], None)
        content += (delta and delta.content) or ""
        for call in delta.tool_calls if delta else ():
            if call.id is not None:
                calls[call.index] = (call.function.name, "")
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.function.arguments)
        yield end, content, list(calls.values())


@given(before=st.sampled_from(["", "Well, ", "a < b "]), parts=st.lists(WELL_FORMED, max_size=4), sizes=SIZES)
def test_the_stream_of_whole_calls_is_that_of_vllms_parser(before, parts, sizes):
    class WithEmptyArguments(hermes.Hermes2ProToolParser):
        def extract_tool_calls_streaming(self, *args):
            delta = super().extract_tool_calls_streaming(*args)
            for call in [] if delta is None else delta.tool_calls:
                call.function.arguments = call.function.arguments or ""
            return delta

    text = before + "".join(parts)
    ours = streamed(tool_parser.HermesToolParser(NO_TOKENS), text, sizes)
    for one, other in zip(ours, streamed(WithEmptyArguments(NO_TOKENS), text, sizes), strict=True):
        assert (one[1].strip(), one[2]) == (other[1].strip(), other[2])


@given(
    before=st.sampled_from(["", "\n", " Well, ", "a < b "]),
    parts=st.lists(st.one_of(WELL_FORMED, FRAGMENTS), max_size=6),
    sizes=SIZES,
)
@example(before="", parts=["<tool_call>", '{"name": "f", "arguments": {"x": 1}', "</tool_call>"], sizes=[1])
def test_an_answer_that_ends_anywhere_is_the_same_whole_and_streamed_without_marks_as_text(before, parts, sizes):
    text = before + "".join(parts)
    for end, content, calls in streamed(tool_parser.HermesToolParser(NO_TOKENS), text, sizes):
        assert whole(tool_parser.HermesToolParser(NO_TOKENS), text[:end]) == (content, calls)
        assert "<tool_call>" not in content
        assert content == "" or text.startswith(content)


@pytest.mark.parametrize(
    ("ends_after", "calls"),
    [
        ("<tool_", []),
        ('<tool_call>\n{"name": "get_wea', []),
        ('<tool_call>\n{"name": "get_weather"', [("get_weather", "")]),
        ('<tool_call>\n{"name": "get_weather", "arguments": ', [("get_weather", "")]),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"ci', [("get_weather", '{"ci')]),
        ('<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool', [("get_weather", "{}")]),
    ],
)
def test_a_call_that_ends_early_is_given_as_far_as_it_is_written(ends_after, calls):
    assert whole(tool_parser.HermesToolParser(NO_TOKENS), "Look: " + ends_after) == ("Look: ", calls)


def test_the_first_delta_of_a_call_has_arguments_and_nothing_is_added_at_the_end():
    parser = tool_parser.HermesToolParser(NO_TOKENS)
    delta = parser.extract_tool_calls_streaming("", '<tool_call>{"name": "f"', "", [], [], [], None)
    (call,) = json.loads(delta.model_dump_json(exclude_unset=True))["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": ""}
    assert parser.get_remaining_unstreamed_args() == ""


def output(finish_reason: str, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(outputs=[SimpleNamespace(index=index, finish_reason=finish_reason)])


@pytest.mark.parametrize(
    ("engine_end", "vllm_says", "calls", "shown"),
    [
        ("length", "tool_calls", ["a call"], "length"),
        ("stop", "tool_calls", [], "stop"),
        ("stop", "tool_calls", ["a call"], "tool_calls"),
        ("stop", "stop", ["a named call"], "stop"),
        ("abort", "tool_calls", ["a call"], "abort"),
    ],
)
def test_a_whole_answer_ends_with_tool_calls_only_if_a_call_ended_it(engine_end, vllm_says, calls, shown):
    choice = SimpleNamespace(index=0, finish_reason=vllm_says, message=SimpleNamespace(tool_calls=calls))

    async def vllms_answer(_self, _request, results):
        async for _ in results:
            pass
        return SimpleNamespace(choices=[choice])

    async def results():
        yield output(engine_end)

    asyncio.run(tool_parser.with_true_ends(vllms_answer)(None, None, results()))
    assert choice.finish_reason == shown


@pytest.mark.parametrize(("stop_reason", "shown"), [("\n", "stop"), (None, "tool_calls"), (128009, "tool_calls")])
def test_an_answer_that_a_stop_string_ended_does_not_end_with_tool_calls(stop_reason, shown):
    choice = SimpleNamespace(finish_reason="tool_calls", stop_reason=stop_reason)
    assert tool_parser.stopped_inside(lambda item, _: item)(choice, None).finish_reason == shown


def test_vllm_uses_the_parser_and_the_reasons(monkeypatch):
    monkeypatch.setattr(manager.ToolParserManager, "tool_parsers", dict(manager.ToolParserManager.tool_parsers))
    chat = tool_parser.serving.OpenAIServingChat
    before = chat.chat_completion_full_generator, tool_parser.serving.maybe_filter_parallel_tool_calls
    monkeypatch.setattr(chat, "chat_completion_full_generator", before[0])
    monkeypatch.setattr(tool_parser.serving, "maybe_filter_parallel_tool_calls", before[1])
    tool_parser.install()
    assert manager.ToolParserManager.get_tool_parser("hermes") is tool_parser.HermesToolParser
    assert chat.chat_completion_full_generator is not before[0]
    assert tool_parser.serving.maybe_filter_parallel_tool_calls is not before[1]


def test_forced_calls_are_read_by_the_bounded_parser_too():
    """VLLM has its own code for ``required`` and named tools, which reads the whole answer at each token."""
    assert not tool_parser.HermesToolParser.supports_required_and_named
