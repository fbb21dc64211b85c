"""Parses JSON from callers strictly: bounded nesting, no duplicate keys, no NaN or Infinity, no lone surrogates, UTF-8
without a byte order mark.

``json.loads`` alone accepts all of these. Callers interpret the values.
"""

import json
import math
import re
from typing import Final

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # UTF-8 itself has none: they arrive as escapes, rarely


class JsonRefused(ValueError):
    """The text is not accepted as JSON. The message can be shown to the sender. ``key`` is the field with the error, if
    there is one, in a form that UTF-8 can carry.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = None if key is None else key.encode(errors="backslashreplace").decode()


class _NotANumber:
    """A placeholder for NaN, Infinity or a number beyond every float, until the surrounding field is known."""

    def __init__(self, text: str) -> None:
        self.text = text


def parse(text: bytes, *, depth_max: int) -> object:
    """The value of a UTF-8 JSON text whose brackets nest at most ``depth_max`` deep. The caller bounds its length.

    Raises ``JsonRefused``. Depth is counted on the bytes before parsing, so a text of nothing but brackets costs one
    pass and no stack. Texts with fewer brackets than allowed levels are not scanned.
    """
    if text.count(b"{") + text.count(b"[") > depth_max:
        _bound_depth(text, depth_max)
    try:
        value = (_MINUS_ZERO_DECODER if b"-0" in text else _DECODER).decode(text.decode("utf-8"))
        _refuse_wrong_number(value, None)
        if _SURROGATE.search(text):
            _refuse_surrogates(value, None)
    except JsonRefused:
        raise
    except UnicodeDecodeError as error:
        raise JsonRefused(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise JsonRefused("a number has thousands of digits") from None
    except RecursionError:
        raise JsonRefused("nested too deep") from None
    return value


def _bound_depth(text: bytes, depth_max: int) -> None:
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > depth_max:
            raise JsonRefused(f"nested more than {depth_max} deep")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise JsonRefused(f"the key {shorten(key)} occurs twice", key)
        if isinstance(value, _NotANumber | list):
            _refuse_wrong_number(value, key)
        found[key] = value
    return found


def _float(digits: str) -> float | _NotANumber:
    number = float(digits)
    return number if math.isfinite(number) else _NotANumber(shorten(digits))


def _integer(digits: str) -> int | float:
    """Minus zero is not an integer to other JSON parsers either."""
    return -0.0 if digits == "-0" else int(digits)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_NotANumber, parse_float=_float)
_MINUS_ZERO_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_NotANumber, parse_float=_float, parse_int=_integer
)


def _refuse_wrong_number(value: object, key: str | None) -> None:
    """Objects were checked when they were parsed; this checks lists and the top-level value."""
    if isinstance(value, list):
        for each in value:
            _refuse_wrong_number(each, key)
    elif isinstance(value, _NotANumber):
        where = "" if key is None else f"{shorten(key)}: "
        raise JsonRefused(f"{where}{value.text} is not a JSON number", key)


def _refuse_surrogates(value: object, key: str | None) -> None:
    """A lone surrogate in a string or key cannot be encoded as UTF-8, for an engine or for the sender."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            where = "" if key is None else f"{shorten(key)}: "
            raise JsonRefused(f"{where}text with a lone surrogate", key) from None
    elif isinstance(value, list):
        for each in value:
            _refuse_surrogates(each, key)
    elif isinstance(value, dict):
        for name, each in value.items():
            _refuse_surrogates(name, name)
            _refuse_surrogates(each, name)


def shorten(value: object, characters_max: int = 80) -> str:
    """A sender's value for an error message: JSON, ASCII only, cut at ``characters_max``."""
    text = json.dumps(value, default=str)
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
