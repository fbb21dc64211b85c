"""What the door and the worker's loader say to each other over a Unix socket: one JSON object a line, in any order of
answers. The socket lies in the run folder, which only the replica's own user can enter.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from data_plane.engine.residency import SOCKET_FILE

LINE_BYTES_MAX: Final = 4 << 20  # the set of refused adapters is sent whole


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``hold`` and ``release`` a name, ``load`` it from a folder into host memory, replace the set of held or
    pinned names or, as ``names`` too, of refused adapter ids.
    """

    id: int
    op: Literal["hold", "hold_only", "release", "load", "pin", "refuse"]
    name: str = ""
    path: str = ""
    names: tuple[str, ...] = ()


class WorkerReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``tier`` answers ``hold``, ``loaded`` answers ``load``, ``missing`` answers ``pin``; ``error`` says why not."""

    id: int
    tier: Literal["slot", "memory"] | None = None
    loaded: bool = False
    missing: tuple[str, ...] = ()
    error: str | None = None


@contextmanager
def socket_address(run_dir: Path) -> Iterator[str]:
    """A path of the socket that is short enough for the kernel's 107 bytes however deep the folder lies; it holds
    within the block.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)
