"""Advisory locks on files, between the processes of one machine. A lock is gone when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02


class LockTimeout(TimeoutError):
    """Another process held the lock for too long."""


@contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold ``path`` exclusively within the block. Raises ``LockTimeout``. The file is removed again afterwards, so that
    there are never more of them than locks held.
    """
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise LockTimeout(f"{path.name} was locked for {timeout_s:g} s")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds ``path`` exclusively until it is closed, or None while another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if _is_same(descriptor, path):
        return descriptor
    os.close(descriptor)  # its holder removed the file between our open and our lock
    return None


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
