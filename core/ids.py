"""Prefixed, time-ordered ids. An id sorts by the millisecond of its creation and names the kind of its object.

The body is a ULID: 48 bits of Unix milliseconds and 80 random bits in Crockford's base32
(https://github.com/ulid/spec), in lower case so that the id is also a valid file name, S3 key and DNS label.
"""

import hashlib
import os
import re
import time
from typing import Final, Literal

Kind = Literal[
    "tn", "key", "pl", "pv", "ad", "rev", "up", "req", "inv", "il", "tr", "acc", "adj", "rep", "boot", "aud", "rvk",
    "gw", "nep", "ntf", "ndl", "cf", "dis", "pd", "po", "cn", "rcr", "crl", "spl", "atu", "pop", "pal", "top", "chg",
    "file", "batch", "prv", "usr", "ivt", "ses",
]  # fmt: skip

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_BODY: Final = r"[0-9a-hjkmnp-tv-z]{26}"
_ANY_ID: Final = re.compile(rf"(?P<kind>[a-z]+)_{_BODY}")


def new_id(kind: Kind) -> str:
    """A new id such as ``tn_01jd3kq5...``: 26 characters after the prefix."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10))
    return f"{kind}_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def first_id_of_ms(kind: Kind, unix_ms: int) -> str:
    """The smallest id that an object of this millisecond can have: a bound for a range of time-ordered ids."""
    number = max(0, unix_ms) << 80
    return f"{kind}_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def derived_id(kind: Kind, unix_ms: int, *parts: object) -> str:
    """An id that follows from this millisecond and these parts: the same parts give the same id again."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).digest()
    number = (max(0, unix_ms) << 80) | int.from_bytes(digest[:10])
    return f"{kind}_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def is_id(text: str, kind: Kind) -> bool:
    """Whether ``text`` has the format of an id of this kind. Does not check that the object exists."""
    match = _ANY_ID.fullmatch(text)
    return match is not None and match["kind"] == kind


def ms_of_id(text: str) -> int | None:
    """The Unix millisecond in which an id was made; None for a text that is no id."""
    match = _ANY_ID.fullmatch(text)
    if match is None:
        return None
    number = 0
    for character in text[len(match["kind"]) + 1 :][:10]:
        number = number * 32 + _ALPHABET.index(character)
    return number
