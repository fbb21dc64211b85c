"""Which digests the engines of this machine may re-read, so that no process ever evicts a file another one needs.

Each process writes the digests it handed out into a file of its own and holds that file locked while it lives; the file
of a dead process counts no more and is removed by whoever finds it.
"""

import os
import secrets
from pathlib import Path

from adapters.file_locks import try_lock


class PinFile:
    """The digests that this process holds. Not thread-safe: the cache calls it under its lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        descriptor = try_lock(self._path)
        assert descriptor is not None, "the name is new"
        self._descriptor = descriptor
        self._held: set[str] = set()
        self._closed = False

    @property
    def held(self) -> frozenset[str]:
        """What this process holds."""
        return frozenset(self._held)

    def add(self, digest: str) -> None:
        """Hold a digest from now on."""
        if digest not in self._held:
            os.write(self._descriptor, f"{digest}\n".encode())
            self._held.add(digest)

    def remove(self, digest: str) -> None:
        """Hold it no more: the engine has forgotten it."""
        if digest in self._held:
            self._held.remove(digest)
            text = "".join(f"{held}\n" for held in sorted(self._held)).encode()
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def everyone(self) -> frozenset[str]:
        """What this and every other living process holds."""
        held = set(self._held)
        for path in self._folder.iterdir():
            if path == self._path:
                continue
            if (descriptor := try_lock(path)) is not None:
                path.unlink(missing_ok=True)  # its process is dead
                os.close(descriptor)
                continue
            held.update(path.read_text().split())
        return frozenset(held)

    def close(self) -> None:
        """Hold nothing any more. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
