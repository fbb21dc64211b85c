"""Finds a tokenizer's added tokens in a text: from left to right, at each place the longest, as tokenizers does.

The work is proportional to the text, however many tokens there are and however much the text resembles them. One
regular expression with an alternative for each of 6,250 tokens took 12 s for a mebibyte, and held the interpreter's
lock.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_WINDOW_CHARS: Final = 16_384
"""Characters of one search. A search holds the interpreter's lock; other threads run between two searches."""

_ALTERNATIVES_MAX: Final = 8

# Characters with what may follow them; the empty string marks the end of a token.
_Trie = dict[str, "_Trie"]
_END: Final = ""


class AddedTokens:
    """A set of tokens. Safe to share between threads."""

    def __init__(self, tokens: Iterable[str]) -> None:
        known = {token for token in tokens if token}
        self._longest_chars = max(map(len, known), default=0)
        self._pattern = re.compile(_pattern(_trie_of(known)), re.DOTALL) if known else None

    def first(self, text: str) -> str | None:
        """The first of the tokens in ``text``; None where there is none."""
        found = next(self._matches(text), None)
        return None if found is None else found.group()

    def split(self, text: str) -> list[str]:
        """The parts of ``text`` between the tokens: one more than there are tokens, some perhaps empty."""
        parts, behind = [], 0
        for found in self._matches(text):
            parts.append(text[behind : found.start()])
            behind = found.end()
        return [*parts, text[behind:]]

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        position, pattern = 0, self._pattern
        while pattern is not None and position < len(text):
            end = position + _WINDOW_CHARS
            for found in pattern.finditer(text, position, end + self._longest_chars):
                if found.start() >= end:  # the next window sees all of it
                    break
                yield found
                position = found.end()
            position = max(position, end)


def _trie_of(tokens: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[_END] = {}
    return root


def _pattern(node: _Trie) -> str:
    """A pattern of the longest token that begins with this node's path. It tries few alternatives at each character."""
    alternatives = []
    for character in sorted(node.keys() - {_END}):
        literal, child = character, node[character]
        while len(child) == 1 and _END not in child:  # no choice: one literal
            ((only, child),) = child.items()
            literal += only
        alternatives.append((character, re.escape(literal) + _pattern(child)))
    if not alternatives:
        return ""
    return f"(?:{_choice(alternatives)})" + ("?" if _END in node else "")


def _choice(alternatives: list[tuple[str, str]]) -> str:
    """The alternatives, which are sorted by their first characters; many are found by halving."""
    if len(alternatives) <= _ALTERNATIVES_MAX:
        return "|".join(pattern for _, pattern in alternatives)
    middle = len(alternatives) // 2
    halves = alternatives[:middle], alternatives[middle:]
    return "|".join(f"(?=[{re.escape(half[0][0])}-{re.escape(half[-1][0])}])(?:{_choice(half)})" for half in halves)
