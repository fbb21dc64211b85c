"""Leases on the digests that engines of this machine may read again, so that no process evicts files in use.

Each process writes the digests that it handed out into its own file and keeps this file locked while it lives. The file
of a dead process is ignored and removed by the next process that finds it. Several holders may share a digest.
"""

import errno
import os
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from adapters.cache.file_locks import is_same, try_lock

_LINE_BYTES: Final = 65  # a digest and a line's end
RESERVED_BYTES: Final = 1024 * _LINE_BYTES
"""Taken from the disk at the start, so that a full one does not keep what lies on it from being held."""


class DigestLeases:
    """The digests that this process holds.

    Methods marked so need the folder's lock, under which other processes read the file; the others only touch memory,
    from any thread. A digest without holders is removed from the file at the next ``flush``; until then other processes
    keep it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._holders: dict[str, set[str]] = {}
        self._written: set[str] = set()
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._path = folder
        self._open()

    def holders(self, digest: str) -> frozenset[str]:
        """The holders of a digest in this process."""
        with self._guard:
            return frozenset(self._holders.get(digest, ()))

    def acquire(self, digest: str, holder: str = "") -> None:
        """Hold a digest from now on. Needs the folder's lock."""
        if digest not in self._written:
            self._write([*self._written, digest])
            self._written.add(digest)
        with self._guard:
            self._holders.setdefault(digest, set()).add(holder)

    def join(self, digest: str, holder: str) -> bool:
        """Add a holder to a digest that this process holds already; False when it does not."""
        with self._guard:
            if holders := self._holders.get(digest):
                holders.add(holder)
            return bool(holders)

    def release(self, digest: str, holder: str = "") -> None:
        """Release a digest for one holder."""
        with self._guard:
            if holders := self._holders.get(digest):
                holders.discard(holder)

    def flush(self) -> None:
        """Write the present leases to the file, also when another program has removed it. Needs the folder's lock."""
        if self._descriptor is None:
            return  # closed
        if not is_same(self._descriptor, self._path):
            os.close(self._descriptor)
            self._open()
            self._write(self._written)
        self._reserve()
        with self._guard:
            dropped = [digest for digest, holders in self._holders.items() if not holders]
            for digest in dropped:
                del self._holders[digest]
        if dropped:
            self._written.difference_update(dropped)
            self._write(self._written)

    def all_leased(self) -> frozenset[str]:
        """The digests that this and every other living process holds. Needs the folder's lock."""
        held = set(self._written)
        for path in self._folder.iterdir():
            if path == self._path or not path.is_file():
                continue
            if (descriptor := try_lock(path)) is not None:
                path.unlink(missing_ok=True)  # its process is dead
                os.close(descriptor)
                continue
            held.update(path.read_bytes().replace(b"\0", b" ").decode().split())
        return frozenset(held)

    def close(self) -> None:
        """Release everything. Idempotent."""
        if self._descriptor is not None:
            if is_same(self._descriptor, self._path):
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self._path = self._folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._descriptor = try_lock(self._path)
        assert self._descriptor is not None, "the name is new"
        self._reserve()

    def _reserve(self) -> None:
        """Allocate the file in advance. On a full disk this fails and is repeated; meanwhile each lease needs free
        space.
        """
        assert self._descriptor is not None, "a closed file reserves nothing"
        size = os.fstat(self._descriptor).st_size
        if size < RESERVED_BYTES:
            try:
                os.posix_fallocate(self._descriptor, 0, RESERVED_BYTES)
            except OSError:
                os.ftruncate(self._descriptor, size)

    def _write(self, digests: Iterable[str]) -> None:
        """Overwrite the whole list and pad it with zeros."""
        assert self._descriptor is not None, "a closed file holds nothing"
        text = "".join(f"{digest}\n" for digest in digests).encode()
        size = os.fstat(self._descriptor).st_size
        if os.pwrite(self._descriptor, text.ljust(size, b"\0"), 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
