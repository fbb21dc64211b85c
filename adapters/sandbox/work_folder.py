"""The temporary folder in which one upload is validated, and the removal of folders whose process was killed.

A process owns a folder while it holds a lock on it; the kernel releases the lock when the process dies.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

_PREFIX: Final = "tenora-upload-"


@contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """An empty folder under ``parent`` (the system's temporary folder if None), removed after the block."""
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned(parent: Path | None) -> int:
    """Remove the folders under ``parent`` whose process, of this user, was killed. Returns their number. Folders of
    living processes and of other users (except for root), and links, stay. Fails open: what cannot be removed stays.
    """
    removed = 0
    for folder in sorted((parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*")):
        lock = _try_lock(folder)
        if lock is None:
            continue
        try:
            if os.geteuid() in (0, os.fstat(lock).st_uid):  # root gives its folders to the validating child's user
                shutil.rmtree(folder, ignore_errors=True)
                removed += not folder.exists()
        finally:
            os.close(lock)
    if removed:
        structlog.get_logger().info("abandoned work folders removed", folders=removed)
    return removed


def _locked_folder(parent: Path | None) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _try_lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:  # a sweeper took it for abandoned between our two calls
            os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """A descriptor that holds the folder until it is closed; None when another process holds it or it is no folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone, a link, a file, or not ours to look into
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
