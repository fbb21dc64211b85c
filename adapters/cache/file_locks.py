"""Advisory locks on files, between the processes of one machine. The kernel releases a lock when its holder dies.

If the folder of the locks is removed, it is created again, and a lock on a removed file is void.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02


class LockTimeout(TimeoutError):
    """Another process held the lock for too long."""


@contextmanager
def locked(path: Path, *, timeout_s: float, stop: threading.Event | None = None) -> Iterator[None]:
    """Hold ``path`` exclusively within the block. Raises ``LockTimeout``, also when ``stop`` is set meanwhile. The file
    is removed afterwards, so that there are never more files than locks held.
    """
    deadline = time.monotonic() + timeout_s
    pause = stop or threading.Event()
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline or pause.wait(_POLL_S):
            raise LockTimeout(f"{path.name} was locked for {timeout_s:g} s")
    try:
        yield
    finally:
        if is_same(descriptor, path):  # not the file of a process that created it again after ours was removed
            path.unlink(missing_ok=True)
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds ``path`` exclusively until it is closed, or None while another process does."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if is_same(descriptor, path):
        return descriptor
    os.close(descriptor)  # its holder removed the file between our open and our lock
    return None


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def is_same(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one under ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
