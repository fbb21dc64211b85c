"""The folder of cached adapters as a budget sees it: what lies there, how large, how lately used, and what may go.

Layout: ``<digest>/`` are whole adapters, ``.incoming/`` downloads, ``.trash/`` what is being removed, ``.pins/`` and
``.locks/`` belong to ``adapters.pins`` and ``adapters.file_locks``. When to download is ``adapters.cache``.
"""

import os
import secrets
import shutil
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from adapters.manifest import MANIFEST_FILE, AdapterManifest, ManifestDamaged, is_digest, read_manifest, sha256_of


class CachedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter on the disk; ``used_at_ns`` is its last use in Unix nanoseconds."""

    digest: str
    size_bytes: int
    used_at_ns: int


def choose_victims(
    adapters: Iterable[CachedAdapter], *, needed_bytes: int, budget_bytes: int, protected: AbstractSet[str]
) -> tuple[list[str], int]:
    """The least recently used digests to remove so that ``needed_bytes`` more fit the budget, and by how many bytes it
    is exceeded even so. Protected ones are never among them.
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


class AdapterFolder:
    """The files. Every method may block on the disk; callers hold the locks they need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pins, self.locks = root / ".pins", root / ".locks"
        self._incoming, self._trash = root / ".incoming", root / ".trash"
        for folder in (root, self.pins, self.locks, self._incoming, self._trash):
            folder.mkdir(parents=True, exist_ok=True)
        self.empty_trash()

    def path(self, digest: str) -> Path:
        """Where an adapter lies when it is here. Raises ``ValueError`` for what is no digest."""
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is no digest")
        return self.root / digest

    def lock(self, digest: str) -> Path:
        """The lock under which an adapter is downloaded or mended."""
        return self.locks / digest

    def fresh_incoming(self, digest: str) -> Path:
        """An empty folder to download into; what a crashed download left there is gone."""
        folder = self._incoming / digest
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def read_manifest(self, digest: str) -> AdapterManifest | None:
        """The manifest of a cached adapter; None when it is absent or damaged."""
        try:
            return read_manifest((self.path(digest) / MANIFEST_FILE).read_bytes(), digest)
        except (FileNotFoundError, ManifestDamaged):
            return None

    def is_whole(self, digest: str) -> bool:
        """Whether manifest and files are there with the right checksums. Reads all of it."""
        manifest = self.read_manifest(digest)
        if manifest is None:
            return False
        try:
            return all(
                sha256_of(str(self.path(digest) / file.path)) == (file.size_bytes, file.sha256)
                for file in manifest.files
            )
        except FileNotFoundError:
            return False

    def install(self, incoming: Path, digest: str) -> None:
        """Make a verified download the adapter. A damaged one is mended file by file, since an engine may be reading
        the folder: at no instant is a file missing.
        """
        _sync(incoming)
        target = self.path(digest)
        if target.is_dir():
            for file in sorted(incoming.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
                file.replace(target / file.name)
            incoming.rmdir()
        else:
            incoming.rename(target)
        _sync(self.root)

    def touch(self, digest: str) -> None:
        """Note a use: the manifest's modification time survives restarts."""
        os.utime(self.path(digest) / MANIFEST_FILE)

    def list(self) -> list[CachedAdapter]:
        """Every adapter here. One without a readable manifest counts as used never."""
        found = []
        for folder in self.root.iterdir():
            if is_digest(folder.name) and folder.is_dir():
                sizes = {file.name: file.stat() for file in folder.iterdir()}
                manifest = sizes.get(MANIFEST_FILE)
                found.append(
                    CachedAdapter(
                        digest=folder.name,
                        size_bytes=sum(status.st_size for status in sizes.values()),
                        used_at_ns=manifest.st_mtime_ns if manifest else 0,
                    )
                )
        return found

    def discard(self, digest: str) -> None:
        """Take an adapter away at once; ``empty_trash`` frees its bytes."""
        self.path(digest).rename(self._trash / f"{digest}-{secrets.token_hex(4)}")

    def empty_trash(self) -> None:
        """Free what was discarded, by this or by a crashed process."""
        for folder in self._trash.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def free_bytes(self) -> int:
        """What the file system can still take."""
        return shutil.disk_usage(self.root).free


def _sync(folder: Path) -> None:
    """Names written before are on the disk afterwards, so that a power cut leaves no half-named adapter."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
