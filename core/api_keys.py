"""The format of an API key: creation, check and hash. Keys are stored elsewhere, and only as hashes.

``tnr_live_<30 base62 characters>_<6 base62 characters of CRC-32>``, after GitHub's format (github.blog, 2021-04-05):
arithmetic alone refuses a typo or a truncated paste, and secret scanners can recognize the prefix.
"""

import binascii
import hmac
import re
import secrets
import string
from collections.abc import Iterable
from typing import Final, Literal

Audience = Literal["live", "admin"]

ALL_SCOPES: Final = (
    "inference",
    "adapters:read",
    "adapters:write",
    "usage:read",
    "billing:read",
    "billing:write",
    "keys:write",
    "notifications:write",
    "audit:read",
)
ADMIN_SCOPES: Final = ("admin",)

_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ENTROPY_CHARACTERS: Final = 30  # 178 bits
_SHAPE: Final = re.compile(r"tnr_(live|admin)_[0-9A-Za-z]{30}_[0-9A-Za-z]{6}")


def _checksum(body: str) -> str:
    number = binascii.crc32(body.encode())
    digits = ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits


def mint_key(audience: Audience) -> str:
    """A new secret key. It exists only in the return value: show it once, store its ``hash_key``."""
    body = f"tnr_{audience}_" + "".join(secrets.choice(_BASE62) for _ in range(_ENTROPY_CHARACTERS))
    return f"{body}_{_checksum(body)}"


def shown_keys(authorizations: Iterable[str]) -> set[str]:
    """The keys in ``Authorization`` headers. An empty header and ``Bearer`` without a key show none, as if they were
    absent; another scheme than Bearer shows a key that is not well formed.
    """
    shown = set()
    for header in authorizations:
        scheme, _, key = header.strip().partition(" ")
        shown.add(key.strip() if scheme.lower() == "bearer" else f"{scheme} {key}")
    return shown - {"", " "}


def is_well_formed(key: str) -> bool:
    """Whether format and checksum are right, without any lookup."""
    if len(key) > 64 or not _SHAPE.fullmatch(key):
        return False
    body, _, checksum = key.rpartition("_")
    return hmac.compare_digest(_checksum(body), checksum)


def hash_key(key: str, pepper: bytes) -> str:
    """HMAC-SHA256 in hex: the form that is stored, published to gateways and looked up."""
    return hmac.digest(pepper, key.encode(), "sha256").hex()


def redact(key: str) -> str:
    """The form that lists show: the prefix and the last four characters."""
    return f"{key[: key.index('_', 4)]}_…{key[-4:]}"
