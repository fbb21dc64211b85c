"""The credential of one line of a batch. With it the batch worker calls a gateway for the API key that made the batch,
of which it knows only the stored hash.

The control plane and gateways share the pepper of API keys, and it signs the credential. A gateway looks the hash up as
it does that of any caller, so a revoked key or a suspended tenant is refused as always.
"""

import hmac
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from core.ids import is_id

HEADER: Final = "x-tenora-line"
_PURPOSE: Final = b"tenora batch line\0"  # no API key begins with it, so no key's hash is a signature


class LineCredential(msgspec.Struct, frozen=True):
    """The API key's stored hash, and the id that the gateway gives the request. ``is_paid``: the line was billed
    before, so this run is free. ``only_stored``: the gateway repeats an answer that it has, and runs nothing.
    """

    key_hash: str
    request_id: str
    is_paid: bool = False
    only_stored: bool = False


def sign_line(line: LineCredential, pepper: bytes, *, expires_at_s: int) -> str:
    """The header's value. It is valid until this Unix second."""
    content = f"{line.key_hash}.{line.request_id}.{line.is_paid:d}.{line.only_stored:d}.{expires_at_s}"
    return f"{content}.{_signature(content, pepper)}"


def read_line(text: str, peppers: Sequence[bytes], *, now_s: float) -> LineCredential | None:
    """The credential; None unless one of the peppers signed it, and it is still valid."""
    content, _, signature = text.rpartition(".")
    if not any(hmac.compare_digest(signature.encode(), _signature(content, each).encode()) for each in peppers):
        return None
    key_hash, request_id, is_paid, only_stored, expires_at_s = content.split(".")
    if int(expires_at_s) <= now_s or not is_id(request_id, "req"):
        return None
    return LineCredential(key_hash, request_id, is_paid == "1", only_stored == "1")


def shown_line(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header's value among a request's headers; None without it."""
    name = HEADER.encode()
    return next((value.decode("latin-1") for given, value in headers if given == name), None)


def _signature(content: str, pepper: bytes) -> str:
    return hmac.digest(pepper, _PURPOSE + content.encode(), "sha256").hex()
