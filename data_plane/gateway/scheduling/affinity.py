"""What holds requests together: the key of a session or prefix, by which placement finds their replica again, and which
revision of a weighted alias serves a session: always the same one while the weights stand. Pure.

Weighted rendezvous hashing
(https://www.snia.org/sites/default/files/SDC15_presentations/dist_sys/Jason_Resch_New_Consistent_Hashings_Rev.pdf):
every revision draws a number from the session's key, and the largest wins. Where one weight grows, sessions move to
that revision only, and no others change places.
"""

import hashlib
import math
import zlib
from collections.abc import Mapping
from typing import Final

from core.errors import InvalidRequest
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.errors import Headers

_HEADER: Final = b"x-session-id"
_HEADER_BYTES_MAX: Final = 256
_PREFIX_CHARS: Final = 2048  # of a prompt's beginning: enough to tell prompts apart, few enough to be cheap


def session_key(headers: Headers, call: Call) -> str:
    """What the caller calls its session: header ``x-session-id``, else ``user``, else ``prompt_cache_key``; "" where
    there is none. Raises InvalidRequest for a header that is too long.
    """
    for name, value in headers:
        if name == _HEADER and value:
            if len(value) > _HEADER_BYTES_MAX:
                raise InvalidRequest(
                    f"Header `x-session-id` has {len(value)} bytes; send at most {_HEADER_BYTES_MAX}.",
                    code="invalid_value",
                    param="x-session-id",
                )
            return value.decode("latin-1")
    return call.session


def affinity_key(tenant_id: str, session: str, call: Call) -> str:
    """By what requests are sent to where their prefix was read before: the session, else the beginning of the prompt or
    of the first message, which is the same in all turns of a conversation and under one system prompt. "" for neither.
    """
    if session:
        return f"{tenant_id}\0{session}"
    prefix = call.prompt if call.messages is None else call.messages[0].get("content") if call.messages else None
    return (
        f"{tenant_id}\0{zlib.crc32(prefix[:_PREFIX_CHARS].encode(errors='replace')):x}"
        if isinstance(prefix, str)
        else ""
    )


def pick(weights: Mapping[str, int], scope: str, draw: str) -> str:
    """One key of ``weights``, each with probability of its share; the same for the same ``scope`` and ``draw`` in every
    process. ``weights`` has at least one key, and all are positive.
    """
    if len(weights) == 1:
        return next(iter(weights))
    session = hashlib.blake2b(f"{scope}\0{draw}".encode(), digest_size=32).digest()
    return max(weights, key=lambda name: (weights[name] / _exponential(session, name), name))


def _exponential(session: bytes, name: str) -> float:
    """A draw from the exponential distribution, never 0: the first to ring of clocks with rates ``weights`` wins."""
    drawn = hashlib.blake2b(name.encode(), key=session, digest_size=8).digest()
    return -math.log(((int.from_bytes(drawn) >> 11) + 0.5) / (1 << 53))
