"""The affinity key of a request: its session or its prompt's beginning. Placement sends requests with the same key to
the replica that has their prefix in its cache. Pure.
"""

import zlib
from typing import Final

from core.errors import InvalidRequest
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.errors import Headers

_HEADER: Final = b"x-session-id"
_HEADER_BYTES_MAX: Final = 256
_PREFIX_CHARS: Final = 2048  # of a prompt's beginning: enough to tell prompts apart, few enough to be cheap


def session_key(headers: Headers, call: Call) -> str:
    """The name of the caller's session: header ``x-session-id``, else ``user``, else ``prompt_cache_key``; "" where
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
    """The session, else a hash of the beginning of the prompt or of the first message, which is the same in all turns
    of a conversation and under one system prompt. "" for neither.
    """
    if session:
        return f"{tenant_id}\0{session}"
    if call.messages is None:
        prefix = call.prompts[0] if call.prompts else None
    else:
        prefix = call.messages[0].get("content") if call.messages else None
    return (
        f"{tenant_id}\0{zlib.crc32(prefix[:_PREFIX_CHARS].encode(errors='replace')):x}"
        if isinstance(prefix, str)
        else ""
    )
