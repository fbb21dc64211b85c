"""The files of the adapter cache: where they are, whether they are complete, and how they are installed and removed
without a gap.

Layout: ``<digest>/`` are complete adapters, ``.incoming/`` downloads, ``.trash/`` adapters being removed; ``.leases/``
and ``.locks/`` belong to ``adapters.cache.digest_leases`` and ``adapters.cache.file_locks``.
``adapters.cache.disk_cache`` decides when each call is allowed. Nothing here trusts the folder's contents: other
programs can write into it.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import msgspec

from adapters.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    WEIGHTS_FILE,
    AdapterManifest,
    ManifestDamaged,
    is_digest,
    read_manifest,
    sha256_of,
)

Fingerprint = tuple[tuple[int, int, int], ...]
"""Inode, size and modification time of each file: if they are equal, the files were not changed in between."""

_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE)


class CachedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter on the disk; ``used_at_ns`` is its last use in Unix nanoseconds."""

    digest: str
    size_bytes: int
    used_at_ns: int


class CacheFolder:
    """The files. Every method may block on the disk and raise ``OSError``; callers hold the locks they need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.leases, self.locks = root / ".leases", root / ".locks"
        self.incoming, self._trash = root / ".incoming", root / ".trash"
        self.lay_out()

    def lay_out(self) -> None:
        """Create the folders, also after another program has removed them."""
        for folder in (self.root, self.leases, self.locks, self.incoming, self._trash):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """The path of a cached adapter. Raises ``ValueError`` for a text that is not a digest."""
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is no digest")
        return self.root / digest

    def lock(self, digest: str) -> Path:
        """The lock under which an adapter is downloaded or repaired."""
        return self.locks / digest

    def fresh_incoming(self, digest: str) -> Path:
        """An empty folder for a download; leftovers of a crashed download are removed."""
        folder = self.incoming / digest
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def read_manifest(self, digest: str) -> AdapterManifest | None:
        """The manifest of a cached adapter; None when it is absent, damaged or cannot be read."""
        try:
            return read_manifest((self.path(digest) / MANIFEST_FILE).read_bytes(), digest)
        except (OSError, ManifestDamaged):
            return None

    def fingerprint(self, digest: str) -> Fingerprint | None:
        """Inode, size and modification time of the adapter's files; None when one is missing or not a regular file."""
        folder, marks = self.path(digest), []
        for name in _FILES:
            try:
                status = os.lstat(folder / name)
            except OSError:
                return None
            if not stat.S_ISREG(status.st_mode):
                return None
            marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(marks)

    def is_complete(self, digest: str) -> bool:
        """Whether manifest and files exist with the right checksums. Reads all of them."""
        if self.fingerprint(digest) is None or (manifest := self.read_manifest(digest)) is None:
            return False
        try:
            return all(
                sha256_of(str(self.path(digest) / file.path)) == (file.size_bytes, file.sha256)
                for file in manifest.files
            )
        except OSError:
            return False

    def install(self, incoming: Path, digest: str) -> None:
        """Turn a verified download into the adapter. A damaged adapter is repaired file by file, because an engine may
        be reading the folder: at no instant is a file missing.
        """
        make_durable(incoming)
        target = self.path(digest)
        if target.is_dir() and not target.is_symlink():
            for file in sorted(incoming.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
                if (target / file.name).is_dir() and not (target / file.name).is_symlink():
                    shutil.rmtree(target / file.name)
                file.replace(target / file.name)
            incoming.rmdir()
        else:
            target.unlink(missing_ok=True)
            incoming.rename(target)
        make_durable(self.root)

    def touch(self, digest: str) -> None:
        """Record a use: the folder's modification time survives restarts."""
        os.utime(self.path(digest))

    def read_ahead(self, digest: str) -> None:
        """Ask the kernel to have the weights in its page cache by the time an engine reads them."""
        descriptor = os.open(self.path(digest) / WEIGHTS_FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def digests(self) -> frozenset[str]:
        """Every digest with a folder."""
        with os.scandir(self.root) as entries:
            return frozenset(entry.name for entry in entries if is_digest(entry.name) and entry.is_dir())

    def list(self) -> list[CachedAdapter]:
        """Every adapter. One without a manifest counts as never used."""
        return [_measure(self.root / digest) for digest in sorted(self.digests())]

    def incoming_bytes(self) -> int:
        """The bytes that running downloads will occupy: their files have their full size from the start."""
        return sum(_measure(folder).size_bytes for folder in self.incoming.iterdir())

    def discard(self, digest: str) -> None:
        """Remove an adapter at once; ``empty_trash`` frees its bytes."""
        self.path(digest).rename(self._trash / f"{digest}-{secrets.token_hex(4)}")

    def empty_trash(self) -> None:
        """Free the bytes of discarded adapters, of this process and of crashed ones."""
        for folder in self._trash.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def is_in_trash(self, digest: str) -> bool:
        """Whether any file of a discarded adapter is left."""
        return any(self._trash.glob(f"{digest}-*"))

    def free_bytes(self) -> int:
        """The free bytes of the file system."""
        return shutil.disk_usage(self.root).free


def choose_evictions(
    adapters: Iterable[CachedAdapter], *, needed_bytes: int, budget_bytes: int, protected: AbstractSet[str]
) -> tuple[list[str], int]:
    """The least recently used digests to remove so that ``needed_bytes`` more fit the budget, and by how many bytes the
    budget is exceeded even so. Protected digests are never among them.
    """
    found = sorted(adapters, key=lambda adapter: (adapter.used_at_ns, adapter.digest))
    excess = sum(adapter.size_bytes for adapter in found) + needed_bytes - budget_bytes
    victims = []
    for adapter in found:
        if excess <= 0:
            break
        if adapter.digest not in protected:
            victims.append(adapter.digest)
            excess -= adapter.size_bytes
    return victims, max(0, excess)


def _measure(folder: Path) -> CachedAdapter:
    """Size and last use. A file that disappears meanwhile counts as nothing."""
    size_bytes, used_at_ns = 0, 0
    try:
        with os.scandir(folder) as files:
            for file in files:
                size_bytes += file.stat(follow_symlinks=False).st_size
                if file.name == MANIFEST_FILE:
                    used_at_ns = folder.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        pass
    return CachedAdapter(digest=folder.name, size_bytes=size_bytes, used_at_ns=used_at_ns)


def make_durable(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk: a power cut leaves no half-named adapter."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
