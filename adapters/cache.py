"""Adapters on a replica's disk: fetched once, verified, kept within a byte budget, never taken from under an engine.

vLLM re-reads the path of an adapter that fell out of its memory, in the middle of a step, and a missing file stops the
engine for everyone. So a digest that was handed out stays until ``release`` or until its process is dead, also beyond
the budget: then a warning and a metric say so, and only a disk that is nearly full refuses new downloads. Fails closed
for an adapter that cannot be verified, and for that adapter alone.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from adapters import metrics
from adapters.disk import AdapterFolder, choose_victims
from adapters.file_locks import LockTimeout, locked
from adapters.manifest import MANIFEST_FILE
from adapters.pins import PinFile
from adapters.settings import CacheSettings
from adapters.store import AdapterStore, revision_prefix
from core.errors import Unavailable

_log: Final = structlog.get_logger()
_FOLDER_LOCK_TIMEOUT_S: Final = 30  # held for renames and listings alone
_CHECKERS: Final = 4  # threads that verify what is on the disk already


class CacheFull(Unavailable):
    """The disk is nearly full of adapters that engines may still read."""

    default_code = "adapter_cache_full"


class DiskCache:
    """``fetch`` from one event loop, any number of callers; several processes may share a folder."""

    def __init__(self, settings: CacheSettings, store: AdapterStore) -> None:
        self._settings = settings
        self._store = store
        self._folder = AdapterFolder(settings.cache_dir.absolute())
        self._pins = PinFile(self._folder.pins)
        self._verified: set[str] = set()
        self._flights: dict[str, asyncio.Task[Path]] = {}
        self._folder_guard = threading.Lock()
        self._checkers = ThreadPoolExecutor(_CHECKERS, "adapter-check")
        self._downloaders = ThreadPoolExecutor(settings.cache_downloads_max, "adapter-download")

    async def fetch(self, digest: str) -> Path:
        """The folder of an adapter's verified files, which stay there until ``release``.

        Callers at the same time share one download; a caller that is cancelled does not cancel it. Raises
        ``ObjectMissing`` for a digest that is not stored, ``Unavailable`` when S3 or the disk cannot give it.
        """
        if (flight := self._flights.get(digest)) is None:
            flight = asyncio.create_task(self._fetch(digest))
            self._flights[digest] = flight
            flight.add_done_callback(lambda done: self._landed(digest, done))
        return await asyncio.shield(flight)

    def _landed(self, digest: str, flight: asyncio.Task[Path]) -> None:
        del self._flights[digest]
        if not flight.cancelled():
            flight.exception()  # looked at, also when every caller was cancelled meanwhile

    @property
    def handed_out(self) -> frozenset[str]:
        """Digests this process holds."""
        return self._pins.held

    def release(self, digest: str) -> None:
        """The engine has forgotten this adapter in every tier: it may be evicted from now on."""
        with self._folder_lock():
            self._verified.discard(digest)
            self._pins.remove(digest)

    def close(self) -> None:
        """Release everything and stop the threads. Only for a process whose engine is gone."""
        self._checkers.shutdown(cancel_futures=True)
        self._downloaders.shutdown(cancel_futures=True)
        self._pins.close()

    async def _fetch(self, digest: str) -> Path:
        loop = asyncio.get_running_loop()
        path = self._folder.path(digest)
        if await loop.run_in_executor(self._checkers, self._take, digest):
            metrics.CACHE_FETCHES.labels("hit").inc()
            return path
        try:
            await loop.run_in_executor(self._downloaders, self._download, digest)
        except Exception:
            metrics.CACHE_FETCHES.labels("failed").inc()
            raise
        metrics.CACHE_FETCHES.labels("downloaded").inc()
        return path

    def _take(self, digest: str) -> bool:
        """Hold an adapter that is here and whole. It is pinned first, so that nobody evicts it while it is checked."""
        with self._folder_lock():
            if not self._folder.path(digest).is_dir():
                return False
            was_held = digest in self._pins.held
            self._pins.add(digest)
        if digest in self._verified or self._folder.is_whole(digest):
            self._verified.add(digest)
            self._folder.touch(digest)
            return True
        _log.warning("cached adapter is damaged; downloading it again", digest=digest)
        if not was_held:
            self.release(digest)
        return False

    def _download(self, digest: str) -> None:
        timeout_s = self._settings.cache_download_timeout_s
        with metrics.DOWNLOAD_SECONDS.time():
            try:
                with locked(self._folder.lock(digest), timeout_s=timeout_s):
                    if not self._take(digest):  # otherwise another process was faster
                        self._download_locked(digest, time.monotonic() + timeout_s)
            except LockTimeout as error:
                raise Unavailable(f"another process is still downloading {digest}", code="store_timeout") from error
            except OSError as error:
                text = f"adapter {digest} cannot be written to the cache: {error.strerror}"
                raise Unavailable(text, code="adapter_cache_failed") from error
        self._make_room(0)  # downloads at the same time did not know of one another

    def _download_locked(self, digest: str, deadline: float) -> None:
        incoming = self._folder.fresh_incoming(digest)
        manifest = self._store.download_manifest(
            digest, incoming / MANIFEST_FILE, timeout_s=self._settings.cache_download_timeout_s
        )
        self._make_room(manifest.size_bytes)
        for file in manifest.files:
            self._store.download(
                revision_prefix(digest) + file.path,
                incoming / file.path,
                bytes_max=file.size_bytes,
                sha256=file.sha256,
                timeout_s=max(0.0, deadline - time.monotonic()),
            )
        with self._folder_lock():
            self._pins.add(digest)
            self._folder.install(incoming, digest)
        self._verified.add(digest)

    def _make_room(self, needed_bytes: int) -> None:
        """Evict for ``needed_bytes`` more. Raises ``CacheFull`` when the disk would be nearly full after them."""
        with self._folder_lock():
            adapters = self._folder.list()
            victims, excess_bytes = choose_victims(
                adapters,
                needed_bytes=needed_bytes,
                budget_bytes=self._settings.cache_bytes,
                protected=self._pins.everyone(),
            )
            for digest in victims:
                self._folder.discard(digest)
        self._folder.empty_trash()
        metrics.CACHE_EVICTIONS.inc(len(victims))
        metrics.CACHE_BYTES.set(sum(adapter.size_bytes for adapter in adapters if adapter.digest not in victims))
        if excess_bytes and needed_bytes:
            metrics.CACHE_OVER_BUDGET.inc()
            _log.warning(
                "adapter cache exceeds its budget: engines may still read all of it", excess_bytes=excess_bytes
            )
        if needed_bytes and self._folder.free_bytes() - needed_bytes < self._settings.cache_free_bytes_min:
            raise CacheFull(
                "the adapter cache's disk is nearly full; raise TENORA_CACHE_DIR's space or restart the replica"
            )

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """One process and one thread at a time looks at pins and renames."""
        with self._folder_guard, locked(self._folder.locks / "folder", timeout_s=_FOLDER_LOCK_TIMEOUT_S):
            yield
