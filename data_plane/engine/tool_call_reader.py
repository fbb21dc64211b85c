"""Reads the tool calls of an answer while it grows, in time linear in its length. Pure.

The format is Hermes's: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``, any number of times, after the
content. ``tool_parser`` gives the pieces to vLLM. An answer may end anywhere: what was read of it until then does not
depend on the pieces in which it came, so a stream and a whole answer are equal. Marks of a call are never content, nor
is white space without other text before a call.
"""

import json
import re
from typing import Final, NamedTuple

_BEGIN: Final = "<tool_call>"
_END: Final = "</tool_call>"
_NAME: Final = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS: Final = '"arguments"'
_NAME_CHARS_MAX: Final = 4096
"""How far into an open call its name is searched at each step. Further on, it is searched when its JSON ends."""
_STRUCTURE: Final = re.compile(r'["\\{}\[\]]')


class Piece(NamedTuple):
    """A part of a tool call that can be sent: its name, or the next characters of its arguments."""

    call: int
    name: str | None
    arguments: str


class ToolCallReader:
    """Reads one answer. Each character is looked at a bounded number of times."""

    def __init__(self) -> None:
        self._seen = 0
        self._content_sent = 0
        self._blank_to = 0  # before it is nothing but white space
        self._outside_from = 0  # where the next call may begin
        self._call: _OpenCall | None = None
        self._calls = 0
        self._nameless = False  # a call without a name hides those after it, as in vLLM's parser

    def read(self, text: str) -> tuple[str, list[Piece]]:
        """The new content and the new pieces of calls in ``text``, which is the whole answer so far."""
        content = "" if self._calls else self._read_content(text)
        pieces: list[Piece] = []
        while not self._nameless and (call := self._open_call(text)) is not None:
            end = text.find(_END, max(call.start, self._seen - len(_END) + 1))
            if end < 0:
                pieces += call.read(text, len(text) - _overlap(text, _END), closed=False)
                break
            pieces += call.read(text, end, closed=True)
            self._nameless = call.name is None
            self._call, self._outside_from = None, end + len(_END)
        self._seen = len(text)
        return content, pieces

    def _read_content(self, text: str) -> str:
        begin = text.find(_BEGIN, max(0, self._seen - len(_BEGIN) + 1))
        sendable = begin if begin >= 0 else len(text) - _overlap(text, _BEGIN)
        if not self._content_sent:
            fresh = text[self._blank_to : sendable]
            if not fresh or fresh.isspace():
                self._blank_to = sendable
                return ""
        content = text[self._content_sent : sendable]
        self._content_sent = max(self._content_sent, sendable)
        return content

    def _open_call(self, text: str) -> "_OpenCall | None":
        if self._call is None:
            begin = text.find(_BEGIN, max(self._outside_from, self._seen - len(_BEGIN) + 1))
            if begin >= 0:
                self._call = _OpenCall(self._calls, begin + len(_BEGIN))
                self._calls += 1
        return self._call


class _OpenCall:
    """One call, whose JSON begins at ``start``. All positions only grow."""

    def __init__(self, index: int, start: int) -> None:
        self.start = start
        self.name: str | None = None
        self._index = index
        self._read_to = self._text_end = start  # ``_text_end``: after the last character that is not a space
        self._json = _JsonEnd(start)
        self._name_searched_to = start
        self._key_from = start  # where the key of the arguments is searched
        self._after_key: int | None = None
        self._colon = False
        self._arguments_at: int | None = None
        self._arguments_sent = 0

    def read(self, text: str, end: int, *, closed: bool) -> list[Piece]:
        """The pieces that ``text`` up to ``end`` adds. ``closed`` says that the end tag follows."""
        fresh = text[self._read_to : end].rstrip()
        if fresh:
            self._text_end = self._read_to + len(fresh)
        self._read_to = end
        complete = self._json.is_complete(text, self._text_end)
        pieces = []
        if self.name is None:
            self.name = self._find_name(text, end, closed=closed)
            if self.name is None:
                return []
            pieces.append(Piece(self._index, self.name, ""))
        if arguments := self._next_arguments(text, complete=complete):
            pieces.append(Piece(self._index, None, arguments))
        return pieces

    def _find_name(self, text: str, end: int, *, closed: bool) -> str | None:
        if not closed:
            end = min(end, max(self.start + _NAME_CHARS_MAX, self._json.end or 0))
            if end <= self._name_searched_to:
                return None
            self._name_searched_to = end
        found = _NAME.search(text, self.start, end)
        return None if found is None else found[1]

    def _next_arguments(self, text: str, *, complete: bool) -> str:
        if self._arguments_at is None:
            self._find_arguments(text)
        if self._arguments_at is None:
            return ""
        at, end = self._arguments_at, self._text_end
        if complete and end > at and text[end - 1] == "}":  # it closes the call
            end = self._json.before_last_brace(text, end)
        new = text[at + self._arguments_sent : end] if end > at + self._arguments_sent else ""
        self._arguments_sent += len(new)
        return new

    def _find_arguments(self, text: str) -> None:
        """Look for the key, a colon, and the first character of the value, each after the last one."""
        end = self._text_end
        while self._arguments_at is None:
            if self._after_key is None:
                key = text.find(_ARGUMENTS, self._key_from, end)
                if key < 0:
                    self._key_from = max(self._key_from, end - len(_ARGUMENTS) + 1)
                    return
                self._key_from, self._after_key, self._colon = key + 1, key + len(_ARGUMENTS), False
            while self._after_key < end and text[self._after_key].isspace():
                self._after_key += 1
            if self._after_key >= end:
                return
            if self._colon:
                self._arguments_at = self._after_key
            elif text[self._after_key] == ":":
                self._after_key, self._colon = self._after_key + 1, True
            else:
                self._after_key = None


class _JsonEnd:
    """Finds where a JSON object or array ends. A scalar has no end: no call is one."""

    def __init__(self, start: int) -> None:
        self._start = self._scanned = start
        self._depth = 0
        self._in_string = False
        self.end: int | None = None  # after the last brace, if all before it is valid JSON
        self._impossible = False
        self._before_brace: tuple[int, int] = (-1, -1)

    def is_complete(self, text: str, end: int) -> bool:
        """Whether the text up to ``end``, its last character that is not a space, is one JSON value."""
        while self.end is None and not self._impossible and self._scanned < end:
            found = _STRUCTURE.search(text, self._scanned, end)
            if found is None:
                self._scanned = end
                break
            self._step(text, found.start())
        return self.end == end

    def _step(self, text: str, at: int) -> None:
        character = text[at]
        self._scanned = at + 1
        if character == "\\":
            self._scanned += self._in_string  # the next character is escaped
        elif character == '"':
            self._in_string = not self._in_string
        elif not self._in_string:
            self._depth += 1 if character in "{[" else -1
        if self._depth < 0:
            self._impossible = True
        elif self._depth == 0 and character in "}]" and not self._in_string:
            try:
                json.loads(text[self._start : at + 1])
                self.end = at + 1
            except ValueError:
                self._impossible = True

    def before_last_brace(self, text: str, end: int) -> int:
        """The end of the text before the brace at ``end - 1``, without spaces."""
        if self._before_brace[0] != end:
            position = end - 1
            while position > self._start and text[position - 1].isspace():
                position -= 1
            self._before_brace = end, position
        return self._before_brace[1]


def _overlap(text: str, tag: str) -> int:
    """Length of the longest beginning of ``tag`` with which ``text`` ends."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
