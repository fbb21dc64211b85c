"""JSON from strangers, read strictly: bounded nesting, no duplicate keys, no NaN or Infinity, UTF-8 without a mark.

``json.loads`` alone accepts all of these. What the values mean is decided by whoever asked for them.
"""

import json
import math
import re
from typing import Final, NoReturn

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


class JsonRefused(ValueError):
    """The text is not JSON as we accept it; the message says why in words that can be shown to the sender."""


def parse(text: bytes, *, depth_max: int) -> object:
    """The value of a UTF-8 JSON text whose brackets nest at most ``depth_max`` deep. The caller bounds its length.

    Raises ``JsonRefused``. Depth is counted on the bytes before anything is parsed, so that a text of nothing but
    brackets costs one pass and no stack. Most texts have fewer brackets than levels allowed, and are not looked at.
    """
    if text.count(b"{") + text.count(b"[") > depth_max:
        _bound_depth(text, depth_max)
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except JsonRefused:
        raise
    except UnicodeDecodeError as error:
        raise JsonRefused(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(f"not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise JsonRefused(f"not JSON that can be read: {error}") from None


def _bound_depth(text: bytes, depth_max: int) -> None:
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > depth_max:
            raise JsonRefused(f"nested more than {depth_max} deep")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise JsonRefused(f"the key {shorten(key)} occurs twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise JsonRefused(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonRefused(f"{shorten(digits)} is too large for a number")
    return number


def shorten(value: object, characters_max: int = 80) -> str:
    """A value from a stranger as it may stand in a message: JSON, ASCII only, cut at ``characters_max``."""
    text = json.dumps(value, default=str)
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
