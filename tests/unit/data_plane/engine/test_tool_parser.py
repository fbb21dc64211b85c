"""The bounded parser of tool calls gives what vLLM's own parser gives, and vLLM uses it."""

from types import SimpleNamespace

from hypothesis import given
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


def deltas(parser, text: str, sizes: list[int]) -> list[tuple[object, ...]]:
    """What a parser sends for ``text`` in chunks of these sizes, without the random ids."""
    sent, end, turn = [], 0, 0
    while end < len(text):
        before, end = text[:end], min(len(text), end + sizes[turn % len(sizes)])
        turn += 1
        delta = parser.extract_tool_calls_streaming(before, text[:end], text[len(before) : end], [], [], [], None)
        if delta is not None:
            sent.append(
                (
                    delta.content or "",
                    *(
                        (call.index, call.type, call.function.name, call.function.arguments)
                        for call in delta.tool_calls
                    ),
                )
            )
    return [each for each in sent if each != ("",)]


@given(
    before=st.sampled_from(["", "Well, ", "a < b "]),
    parts=st.lists(st.one_of(WELL_FORMED, FRAGMENTS), max_size=6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_the_deltas_are_those_of_vllms_parser(before, parts, sizes):
    text, tokenizer = before + "".join(parts), SimpleNamespace()
    expected = deltas(hermes.Hermes2ProToolParser(tokenizer), text, sizes)
    assert deltas(tool_parser.HermesToolParser(tokenizer), text, sizes) == expected


def test_the_arguments_are_kept_for_the_end_of_the_answer():
    parser = tool_parser.HermesToolParser(SimpleNamespace())
    deltas(parser, 'Yes <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', [3])
    assert parser.prev_tool_call_arr == [{"name": "f", "arguments": '{"x": 1}'}]
    assert parser.get_remaining_unstreamed_args() == ""


def test_vllm_finds_the_parser_under_its_name(monkeypatch):
    monkeypatch.setattr(manager.ToolParserManager, "tool_parsers", dict(manager.ToolParserManager.tool_parsers))
    tool_parser.install()
    assert manager.ToolParserManager.get_tool_parser("hermes") is tool_parser.HermesToolParser


def test_forced_calls_are_read_by_the_bounded_parser_too():
    """VLLM has its own code for ``required`` and named tools, which reads the whole answer at each token."""
    assert not tool_parser.HermesToolParser.supports_required_and_named
