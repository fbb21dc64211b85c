"""JSON as RFC 8259 means it, from bytes nobody vouches for: no NaN, no duplicate keys, bounded nesting, UTF-8 only."""

import json
from typing import Any

from core.errors import InvalidRequest


def decode(raw: bytes, *, depth_max: int) -> Any:  # JSON has no narrower type
    """The value of a document of bounded nesting. Raises InvalidRequest ``invalid_json``."""
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise _invalid(f"it nests deeper than {depth_max} levels") from None
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    except ValueError as error:
        raise _invalid(str(error)) from None
    # Most bodies have fewer brackets than levels allowed, and need no walk.
    if raw.count(b"{") + raw.count(b"[") > depth_max and _deeper_than(value, depth_max):
        raise _invalid(f"it nests deeper than {depth_max} levels")
    return value


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add() is None
        raise ValueError(f"the key {twice[:64]!r} stands twice in one object")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _deeper_than(value: Any, depth_max: int) -> bool:
    level = [value]
    for _ in range(depth_max):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)
