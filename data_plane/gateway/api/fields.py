"""The allow-list: every scalar field a caller may send, with its type and bounds.

Structured fields have files of their own: messages.py, schemas.py. What becomes of all others is in field_table.py.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from core.errors import InvalidRequest

Check = Callable[[str, Any], Any]
"""Takes a field's name and value, returns the value to forward; raises InvalidRequest naming the field."""

N_MAX: Final = 4
SESSION_CHARS_MAX: Final = 512
_INT64_MAX: Final = 2**63 - 1
_TIERS: Final = frozenset({"auto", "default", "fast", "flex", "priority", "scale", "standard"})


def invalid(name: str, expected: str) -> InvalidRequest:
    """400 ``invalid_value`` for a field."""
    return InvalidRequest(f"`{name}` must be {expected}.", code="invalid_value", param=name)


def text(name: str, value: Any, *, chars_max: int | None = None, empty: bool = True) -> str:
    """A string that UTF-8 can carry."""
    if not isinstance(value, str) or (chars_max is not None and len(value) > chars_max) or not (value or empty):
        bound = f" of {0 if empty else 1} to {chars_max} characters" if chars_max is not None else ""
        raise invalid(name, f"a string{bound}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(name, "text without lone surrogates") from None
    return value


def integer(low: int, high: int) -> Check:
    """A whole number, never a boolean or a float."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise invalid(name, f"a whole number from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """A finite number."""

    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise invalid(name, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def boolean(name: str, value: Any) -> bool:
    """``true`` or ``false``."""
    if type(value) is not bool:
        raise invalid(name, "true or false")
    return value


def service_tier(name: str, value: Any) -> str:
    """Any of OpenAI's tiers."""
    if not isinstance(value, str) or value not in _TIERS:
        raise invalid(name, "one of " + ", ".join(sorted(_TIERS)))
    return value


def stop(name: str, value: Any) -> list[str]:
    """One string or up to four, each of 1 to 64 characters."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or len(values) > 4:
        raise invalid(name, "a string or a list of at most 4 strings")
    return [text(f"{name}[{index}]", item, chars_max=64, empty=False) for index, item in enumerate(values)]


def logit_bias(name: str, value: Any) -> dict[str, float]:
    """At most 64 token ids with a bias from -100 to 100. The bound by vocabulary is checked once the model is known."""
    if not isinstance(value, dict) or len(value) > 64:
        raise invalid(name, "an object of at most 64 token ids")
    bias = number(-100, 100)
    for token in value:
        if not token.isascii() or not token.isdecimal() or len(token) > 9:
            raise invalid(name, "an object whose keys are token ids")
    return {str(int(token)): bias(f"{name}.{token}", weight) for token, weight in value.items()}


def stream_options(name: str, value: Any) -> dict[str, bool]:
    """``include_usage`` and ``continuous_usage_stats``: what of the usage the caller wants to see."""
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    for key in value:
        if key not in ("include_usage", "continuous_usage_stats"):
            raise unknown(f"{name}.{key}")
    return {key: boolean(f"{name}.{key}", flag) for key, flag in value.items()}


def template_options(name: str, value: Any) -> dict[str, bool]:
    """``enable_thinking``, for base models whose template asks for it. Others would reach into how it is rendered."""
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    if not value.keys() <= {"enable_thinking"}:
        raise unsupported(name, "only `enable_thinking` is taken in it")
    return {key: boolean(f"{name}.{key}", flag) for key, flag in value.items()}


def unknown(name: str) -> InvalidRequest:
    """400 for a field nobody knows: said loudly, since dropping it would change what the caller gets."""
    shown = name[:64]
    return InvalidRequest(
        f"`{shown}` is not a parameter of this endpoint; remove it.", code="unknown_parameter", param=shown
    )


def unsupported(name: str, cure: str = "remove it") -> InvalidRequest:
    """400 for a field that engines know and that is not offered here."""
    return InvalidRequest(f"`{name}` is not supported; {cure}.", code="unsupported_parameter", param=name)


SAMPLING: Final[dict[str, Check]] = {
    "temperature": number(0, 2),
    "top_p": number(1e-6, 1),
    "min_p": number(0, 1),
    "top_k": integer(-1, 1000),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0.01, 2),
    "seed": integer(-_INT64_MAX, _INT64_MAX),
    "stop": stop,
    "logit_bias": logit_bias,
}
"""Forwarded as they are, by both endpoints."""
