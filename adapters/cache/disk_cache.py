"""The rules of the disk cache as blocking calls: when an adapter may be acquired, installed or evicted, and under which
lock. ``adapters.cache.adapter_cache`` downloads.

A digest that an engine of this machine may read again is never removed. Several processes may share the folder. Other
programs may change it; ``adapters.cache.adapter_cache`` then repairs it from S3. Each disk failure has a code and
affects one adapter.
"""

import errno
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from adapters import metrics
from adapters.cache.cache_folder import CacheFolder, Fingerprint, choose_evictions
from adapters.cache.digest_leases import RESERVED_BYTES, DigestLeases
from adapters.cache.errors import cache_full, disk_errors
from adapters.cache.file_locks import LockTimeout, locked
from adapters.manifest import AdapterManifest
from adapters.object_store.download_progress import Download
from adapters.settings import CacheSettings
from core.errors import Unavailable

_log: Final = structlog.get_logger()
_FOLDER_LOCK_TIMEOUT_S: Final = 30  # held only for renames and listings
ANOTHER_PROCESS: Final = "another process"


class DiskCache:
    """One folder of adapters. Thread-safe; every call may block."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self.folder = CacheFolder(settings.cache_dir.absolute())
        self.leases = DigestLeases(self.folder.leases)
        self._verified: dict[str, Fingerprint] = {}
        self._folder_guard = threading.Lock()
        with disk_errors("a start"):
            self._sweep()

    def acquire(self, digest: str, holder: str) -> bool:
        """Acquire a complete adapter; False when it is absent or damaged. It is leased first, so that no process evicts
        it during the check, and checked again whenever its files have changed.
        """
        with disk_errors(f"adapter {digest}"):
            if not self.leases.join(digest, holder):
                with self._folder_lock():
                    if not self.folder.path(digest).is_dir():
                        return False
                    self.leases.acquire(digest, holder)
            if self._is_verified(digest):
                with suppress(OSError):  # an unrecorded use, or pages that are not read ahead, cost only speed
                    self.folder.touch(digest)
                    self.folder.read_ahead(digest)
                return True
        self.leases.release(digest, holder)
        return False

    @contextmanager
    def download_folder(self, digest: str, download: Download, *, timeout_s: float) -> Iterator[Path]:
        """An empty folder for a download. No other process gets it at the same time, and it is removed afterwards.
        Raises ``Unavailable`` when another process has held it for too long.
        """
        with disk_errors(f"adapter {digest}"):
            try:
                with locked(self.folder.lock(digest), timeout_s=timeout_s, stop=download.stop):
                    incoming = self.folder.fresh_incoming(digest)
                    try:
                        yield incoming
                    finally:
                        shutil.rmtree(incoming, ignore_errors=True)
            except LockTimeout as error:
                download.check()
                raise Unavailable(f"another process is still downloading {digest}", code="store_timeout") from error

    def reserve(self, manifest: AdapterManifest, incoming: Path) -> None:
        """Evict for an adapter and allocate its files, so that all downloads together stay within the budget.

        Raises ``CacheFull``, and evicts nothing, when the disk would be nearly full even so.
        """
        needed = manifest.size_bytes
        with disk_errors(f"adapter {manifest.digest}"):
            with self._folder_lock():
                self._evict_for(needed, disk_free_min=self._settings.cache_free_bytes_min, what=manifest.digest)
                for file in manifest.files:
                    with (incoming / file.path).open("wb") as out:
                        out.truncate(file.size_bytes)
            self.folder.empty_trash()

    def install(self, incoming: Path, digest: str, holder: str) -> None:
        """Turn a verified download into the adapter, leased from its first instant."""
        with disk_errors(f"adapter {digest}"), self._folder_lock():
            if self.folder.path(digest).exists():
                metrics.CACHE_DAMAGED.inc()
                _log.warning("cached adapter was damaged and is mended", digest=digest)
            self.leases.acquire(digest, holder)
            try:
                self.folder.install(incoming, digest)
            except OSError:
                self.leases.release(digest, holder)
                raise
            if mark := self.folder.fingerprint(digest):
                self._verified[digest] = mark

    def evict(self, digest: str) -> frozenset[str]:
        """Remove an adapter unless it is leased; returns its holders. Raises ``CacheFailed`` when that fails."""
        with disk_errors(f"adapter {digest}"):
            with self._folder_lock():
                if digest in self.leases.all_leased():
                    return self.leases.holders(digest) or frozenset({ANOTHER_PROCESS})
                if digest in self.folder.digests():
                    self.folder.discard(digest)
                    metrics.CACHE_EVICTIONS.labels("revoked").inc()
                self._verified.pop(digest, None)
            self.folder.empty_trash()
            if self.folder.is_in_trash(digest):
                raise OSError(errno.EBUSY, "its files cannot be removed")
        return frozenset()

    def flush(self) -> None:
        """Publish released leases, so that other processes may evict these adapters."""
        with disk_errors("the holds"), self._folder_lock():
            pass

    def digests(self) -> frozenset[str]:
        """The digests of the cached adapters."""
        with disk_errors("the list of adapters"):
            self.folder.lay_out()
            return self.folder.digests()

    def _is_verified(self, digest: str) -> bool:
        mark = self.folder.fingerprint(digest)
        if mark is not None and self._verified.get(digest) == mark:
            return True
        if mark is not None and self.folder.is_complete(digest):
            self._verified[digest] = mark
            return True
        return False

    def _evict_for(self, needed_bytes: int, *, disk_free_min: int, what: str) -> None:
        """Discard the least recently used adapters until budget and disk have room (``disk_free_min`` more)."""
        adapters, incoming_bytes = self.folder.list(), self.folder.incoming_bytes()
        present_bytes, free_bytes = sum(adapter.size_bytes for adapter in adapters), self.folder.free_bytes()
        room_bytes = present_bytes + incoming_bytes + free_bytes - disk_free_min
        victims, _ = choose_evictions(
            adapters,
            needed_bytes=needed_bytes + incoming_bytes,
            budget_bytes=min(self._settings.cache_bytes, room_bytes),
            protected=self.leases.all_leased(),
        )
        kept_bytes = sum(adapter.size_bytes for adapter in adapters if adapter.digest not in victims)
        if needed_bytes and free_bytes + present_bytes - kept_bytes < needed_bytes + disk_free_min:
            raise cache_full(f"adapter {what}")
        for digest in victims:
            self.folder.discard(digest)
            self._verified.pop(digest, None)
        metrics.CACHE_EVICTIONS.labels("budget").inc(len(victims))
        metrics.CACHE_BYTES.set(kept_bytes)
        excess_bytes = kept_bytes + incoming_bytes + needed_bytes - self._settings.cache_bytes
        if needed_bytes and excess_bytes > 0:
            metrics.CACHE_OVER_BUDGET.inc()
            _log.warning("adapter cache exceeds its budget: engines may read all of it", excess_bytes=excess_bytes)

    def _sweep(self) -> None:
        """The cleanup at start: leftovers of dead processes, and adapters unused for too long."""
        for leftover in self.folder.incoming.iterdir():
            with suppress(LockTimeout), locked(self.folder.locks / leftover.name, timeout_s=0):
                shutil.rmtree(leftover, ignore_errors=True)
        before_ns = time.time_ns() - int(self._settings.cache_age_max_s * 1e9)
        with self._folder_lock():
            protected = self.leases.all_leased()
            for adapter in self.folder.list():
                if adapter.used_at_ns < before_ns and adapter.digest not in protected:
                    self.folder.discard(adapter.digest)
                    metrics.CACHE_EVICTIONS.labels("age").inc()
            self._evict_for(0, disk_free_min=RESERVED_BYTES, what="")
        self.folder.empty_trash()

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """Only one process and one thread at a time reads leases and renames."""
        with self._folder_guard, locked(self.folder.locks / "folder", timeout_s=_FOLDER_LOCK_TIMEOUT_S):
            self.folder.lay_out()
            self.leases.flush()
            yield
