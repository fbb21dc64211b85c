"""Messages between the middleware and the worker's loader over a Unix socket: one JSON object per line, answered in
any order.

The socket is in the run folder, which only the replica's own user can enter.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from data_plane.engine.residency import SOCKET_FILE

LINE_BYTES_MAX: Final = 4 << 20  # the set of revoked adapters is sent as a whole


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``acquire``, ``release`` or ``load`` (from the folder ``path`` into host memory) the adapter ``name``, or replace
    a whole set with ``names``: ``replace_acquired`` and ``pin`` take engine names, ``revoke`` takes adapter ids.
    """

    id: int
    op: Literal["acquire", "replace_acquired", "release", "load", "pin", "revoke"]
    name: str = ""
    path: str = ""
    names: tuple[str, ...] = ()


class WorkerReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``tier`` answers ``acquire``, ``loaded`` answers ``load``, ``missing`` answers ``pin``; ``error`` is why a
    ``load`` failed.
    """

    id: int
    tier: Literal["slot", "memory"] | None = None
    loaded: bool = False
    missing: tuple[str, ...] = ()
    error: str | None = None


@contextmanager
def socket_address(run_dir: Path) -> Iterator[str]:
    """A path of the socket that fits the kernel's limit of 107 bytes, however deep the run folder is. Valid within the
    block.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)
