"""A tokenizer's added tokens are found as tokenizers finds them, in time proportional to the text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api import added_tokens
from data_plane.gateway.api.added_tokens import AddedTokens
from tests.fixtures.examples import examples

UNUSED = [f"<unused{number}>" for number in range(6250)]
"""As many added tokens as Gemma 3 has."""

words = st.text("ab<>\n\ud800é", max_size=6)


def split_slowly(tokens: set[str], text: str) -> list[str]:
    """The rule itself: at each place the longest token, from left to right."""
    parts, behind, place = [], 0, 0
    while place < len(text):
        found = max((token for token in tokens if token and text.startswith(token, place)), key=len, default="")
        if found:
            parts.append(text[behind:place])
            behind = place = place + len(found)
        else:
            place += 1
    return [*parts, text[behind:]]


@examples(300)
@given(st.sets(words, max_size=12), st.lists(words, max_size=12).map("".join), st.integers(1, 9))
def test_the_longest_token_at_each_place_is_found_whatever_the_window(tokens, text, window):
    usual, added_tokens._WINDOW_CHARS = added_tokens._WINDOW_CHARS, window
    try:
        found = AddedTokens(tokens)
        assert found.split(text) == split_slowly(tokens, text)
        first = found.first(text)
    finally:
        added_tokens._WINDOW_CHARS = usual
    before, *rest = split_slowly(tokens, text)
    assert (first is None) == (rest == [])
    assert first is None or text.startswith(first, len(before))


def test_many_alternatives_after_one_prefix_are_all_found():
    tokens = [chr(0x4E00 + first) + chr(0x4E00 + second) for first in range(40) for second in range(40)]
    found = AddedTokens(tokens)
    assert all(found.first(f"x{token}x") == token for token in tokens)
    assert found.first("x\u4e00x\u4e28\u4e28") is None


def test_without_tokens_a_text_is_one_part():
    assert AddedTokens([]).split("a<b>") == ["a<b>"]
    assert AddedTokens([]).first("a<b>") is None


class CountingPattern:
    """Notes how much text each search may look at."""

    def __init__(self, pattern) -> None:
        self.pattern, self.searched = pattern.pattern, []
        self._pattern = pattern

    def finditer(self, text, start, end):
        self.searched.append(min(end, len(text)) - start)
        return self._pattern.finditer(text, start, end)


def test_a_search_holds_the_interpreter_for_one_window_and_all_of_them_look_at_the_text_once():
    """The bound on the work. Its time is the next test's."""
    tokens, text = AddedTokens(UNUSED), "<unused6249" * 100_000
    tokens._pattern = counting = CountingPattern(tokens._pattern)
    tokens.split(text)
    longest = max(map(len, UNUSED))
    assert max(counting.searched) <= added_tokens._WINDOW_CHARS + longest
    assert sum(counting.searched) <= len(text) + longest * len(counting.searched)
    assert most_alternatives(counting.pattern) <= added_tokens._ALTERNATIVES_MAX


def most_alternatives(pattern: str) -> int:
    """The most alternatives between which a pattern chooses at one place."""
    counts, most, escaped = [1], 1, False
    for character in pattern:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "(":
            counts.append(1)
        elif character == ")":
            counts.pop()
        elif character == "|":
            counts[-1] += 1
            most = max(most, counts[-1])
    return most


@pytest.mark.parametrize("piece", ["<", "<unused", "<unused6", "<unused6249", "<unused6249>", "x", "\n"])
def test_a_text_that_resembles_thousands_of_tokens_takes_little_work(piece):
    tokens = AddedTokens([*UNUSED, *("\n" * length for length in range(1, 32))])
    text = piece * ((1 << 20) // len(piece))
    began_s = time.thread_time()
    tokens.first(text)
    tokens.split(text)
    assert time.thread_time() - began_s < 1, "it took 12 s before, and takes some 0.05 s"
