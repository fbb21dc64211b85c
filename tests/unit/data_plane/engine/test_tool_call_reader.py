"""Tool calls are read out of a growing answer once, whatever an adapter writes."""

import json
import time

import pytest

from data_plane.engine.tool_call_reader import Piece, ToolCallReader

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, "}"], "y": {}}}\n</tool_call>'


def read(text: str, step: int) -> tuple[str, list[Piece]]:
    """What a reader sends for a text that grows by ``step`` characters."""
    reader, content, pieces = ToolCallReader(), "", []
    for end in range(step, len(text) + step, step):
        more, found = reader.read(text[:end])
        content += more
        pieces += found
    return content, pieces


def calls_of(pieces: list[Piece]) -> list[tuple[str | None, str]]:
    calls: dict[int, tuple[str | None, str]] = {}
    for piece in pieces:
        name, arguments = calls.get(piece.call, (None, ""))
        calls[piece.call] = (piece.name or name, arguments + piece.arguments)
    return list(calls.values())


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_content_and_calls_are_the_same_in_pieces_of_any_size(step):
    content, pieces = read(f"I look it up.{CALL}\n{CALL} and so on", step)
    assert content == "I look it up."
    assert calls_of(pieces) == [("f", '{"x": [1, "}"], "y": {}}')] * 2
    assert json.loads(calls_of(pieces)[0][1]) == {"x": [1, "}"], "y": {}}


@pytest.mark.parametrize("step", [1, 5])
def test_text_that_only_looks_like_the_beginning_of_a_call_is_content(step):
    assert read("1 <tool_cal and <2", step) == ("1 <tool_cal and <2", [])


def test_arguments_are_sent_while_they_grow():
    reader = ToolCallReader()
    assert reader.read('<tool_call>{"name": "f", "argu')[1] == [Piece(0, "f", "")]
    assert reader.read('<tool_call>{"name": "f", "arguments": {"x": 1')[1] == [Piece(0, None, '{"x": 1')]
    assert reader.read('<tool_call>{"name": "f", "arguments": {"x": 12}}')[1] == [Piece(0, None, "2}")]


def test_a_name_after_long_arguments_is_found_at_the_end_of_the_call():
    text = "<tool_call>" + json.dumps({"arguments": {"x": "y" * 10_000}, "name": "late"}) + "</tool_call>"
    assert [name for name, _ in calls_of(read(text, 50)[1])] == ["late"]


def test_a_call_without_a_name_hides_those_after_it():
    assert read('<tool_call>{"arguments": {}}</tool_call>' + CALL, 9) == ("", [])


ENDLESS = {
    "calls": '<tool_call>{"name":"f","arguments":{}}</tool_call>',
    "one call without an end": '"a":{"b":[1,2]},',
    "closing braces": "}",
    "complete JSON again and again": '{"name":"f","arguments":{}}',
    "spaces": " ",
    "beginnings of calls": "<tool_call>",
    "beginnings of an end": "</tool_call",
    "keys of arguments": '"arguments" ',
    "names without an end": '"name": ',
    "quotes": '"',
    "content": "word ",
}


@pytest.mark.parametrize("endless", ENDLESS)
@pytest.mark.parametrize(
    "before", ["", "<tool_call>", '<tool_call>{"name":"f","arguments":{}}', '<tool_call>{"name":"f","arguments":']
)
def test_the_work_grows_linearly_with_the_answer(before, endless):
    """Eight times the text may cost sixteen times the CPU time; reading all of it at each step would cost 64 times."""

    def seconds(chars: int) -> float:
        text = before + ENDLESS[endless] * (chars // len(ENDLESS[endless]))
        reader, began = ToolCallReader(), time.thread_time()
        for end in range(0, len(text), 4):
            reader.read(text[:end])
        return time.thread_time() - began

    assert any(seconds(32_000) < 16 * max(seconds(4_000), 0.001) for _ in range(3))
