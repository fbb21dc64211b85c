"""Bounds on callers' connections: how many, how long they may be silent, and what is kept of what they do not read.

They are part of the gateway's environment, which is settings.py.
"""

from pydantic import Field

from core.settings import Fragment


class ConnectionSettings(Fragment):
    """What a connection may cost, whatever is asked over it."""

    gateway_connections_max: int = Field(default=20_000, ge=1, description="Client connections one process may hold.")
    gateway_backlog: int = Field(
        default=2048, ge=1, description="Connections the kernel may queue before they are accepted."
    )
    gateway_keepalive_s: int = Field(default=75, ge=1, description="How long an idle client connection is kept.")
    client_silent_s: int = Field(
        default=20,
        ge=1,
        le=600,
        description="A caller whose machine acknowledges nothing for this long, or has no room for it, has gone.",
    )
    client_unsent_max_bytes: int = Field(
        default=16_384,
        ge=1024,
        le=1_048_576,
        description="Bytes of an answer that wait here for the kernel to take more, before its engine has to wait.",
    )
    client_unread_max_bytes: int = Field(
        default=131_072,
        ge=4096,
        le=16_777_216,
        description="Bytes of an answer that the kernel keeps for a caller who reads slowly, in twice as much memory; "
        "no more than net.core.wmem_max.",
    )
    client_least_bytes_per_s: int = Field(
        default=16_384,
        ge=1,
        description="A caller who takes an answer's end more slowly than this, beyond TENORA_LAST_WRITE_S, is cut off.",
    )
    headers_max: int = Field(default=100, ge=1, description="Headers a request may carry.")
    headers_max_bytes: int = Field(default=32_768, ge=1024, description="Bytes of request line and headers.")
    headers_s: float = Field(default=10, gt=0, description="How long the request line and headers may take to arrive.")
