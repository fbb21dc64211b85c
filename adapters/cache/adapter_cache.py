"""The adapter cache of a replica: each adapter is fetched once, verified, and kept within a byte budget. The rules of
the disk are in ``adapters.cache.disk_cache``, the order of downloads in ``adapters.cache.download_queue``.

vLLM reads the path of an adapter again in the middle of a step if the adapter left its memory, and a missing file stops
the engine for all tenants. So a digest that was handed out stays until its last holder calls ``release`` or its process
dies, also above the budget. A warning and a metric report this; only a disk that is nearly full refuses new adapters.
Adapters on the disk are served while S3 is down. An adapter that cannot be verified fails, and no other.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from adapters import metrics
from adapters.cache.disk_cache import DiskCache
from adapters.cache.download_queue import DownloadQueue, DownloadQueueBounds, DownloadQueueFull
from adapters.cache.errors import AdapterStillLoading
from adapters.cache.store_circuit_breaker import StoreCircuitBreaker
from adapters.manifest import MANIFEST_FILE
from adapters.object_store.download_progress import Download, DownloadEstimates, retry_after_s
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import ObjectDamaged, ObjectMissing, StoreUnavailable
from adapters.settings import CacheSettings
from core.errors import AppError

_CHECKERS: Final = 4  # threads that verify adapters on the disk
_CIRCUIT_OPEN_MAX_S: Final = 30


class _Flight:
    """One fetch that several callers wait for, the first of ``owners`` longest. It leases the digest itself until it is
    done.
    """

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.owners: dict[str, None] = {}
        self.download = Download(digest)
        self.waiters: Counter[str] = Counter()
        self.holder = f"loading {id(self):x}"
        self.task: asyncio.Task[Path]


class AdapterCache:
    """Call it from one event loop, with any number of callers. Several processes may share a folder."""

    def __init__(self, settings: CacheSettings, store: RevisionStore) -> None:
        self._settings = settings
        self._store = store
        self._disk = DiskCache(settings)
        self._flights: dict[str, _Flight] = {}
        self._estimates = DownloadEstimates()
        self._circuit = StoreCircuitBreaker(open_s=settings.cache_circuit_open_s, open_max_s=_CIRCUIT_OPEN_MAX_S)
        self._queue = DownloadQueue(
            DownloadQueueBounds(
                running=settings.cache_downloads_max,
                running_per_owner=settings.cache_tenant_downloads_max,
                stalled=settings.cache_stalled_downloads_max,
                stall_s=settings.cache_stall_s,
                waiting=settings.cache_waiting_max,
                waiting_per_owner=settings.cache_tenant_waiting_max,
            )
        )
        self._checkers = ThreadPoolExecutor(_CHECKERS, "adapter-check")
        self._downloaders = ThreadPoolExecutor(
            settings.cache_downloads_max + settings.cache_stalled_downloads_max, "adapter-download"
        )
        self._closed = False

    async def fetch(
        self, digest: str, *, holder: str = "", tenant: str | None = None, deadline_s: float | None = None
    ) -> Path:
        """Return the folder of an adapter's verified files. They stay until the same ``holder`` calls ``release``. The
        holder is the engine's name for the adapter, because several names may share a digest.

        Concurrent callers share one download; a cancelled caller does not cancel it. Tenants take turns; ``tenant`` is
        any string that identifies one. Without it, each ``holder`` has its own queue.
        Raises ``AdapterStillLoading`` with an estimate after ``deadline_s``, while the download continues;
        ``ObjectMissing`` for a digest that is not stored; ``Unavailable`` when S3 or the disk fails.
        """
        owner = holder if tenant is None else tenant
        if (flight := self._flights.get(digest)) is None:
            flight = self._start(digest)
        else:
            self._queue.share(owner, flight.download)
        flight.owners[owner] = None
        flight.waiters[holder] += 1
        try:
            await asyncio.wait({flight.task}, timeout=deadline_s)
            if not flight.task.done():
                raise self._still_loading(flight.download)
            return flight.task.result()
        except AppError as error:
            metrics.CACHE_REFUSALS.labels(error.code).inc()
            raise
        finally:
            flight.waiters[holder] = max(0, flight.waiters[holder] - 1)

    def is_fetching(self, digest: str) -> bool:
        """Whether a caller of this process waits for the adapter, or waited, and its fetch is still under way."""
        return digest in self._flights

    def release(self, digest: str, holder: str = "") -> None:
        """Release a name that the engine dropped from every tier. Its files may be evicted from now on, unless another
        name or process holds them. Returns at once. Idempotent.
        """
        self._disk.leases.release(digest, holder)
        if not self._closed:
            self._checkers.submit(self._disk.flush)

    async def evict(self, digest: str, holder: str = "") -> frozenset[str]:
        """Release the name, stop its download if no other caller waits for it, and remove the files.

        Returns the holders that remain on this machine, under another name or in another process; empty when the files
        are removed. Idempotent. Raises ``Unavailable`` when the disk fails.
        """
        if (flight := self._flights.get(digest)) is not None:
            flight.waiters.pop(holder, None)
            if not +flight.waiters:
                flight.download.stop.set()
                self._queue.withdraw(flight.download)
                await asyncio.wait({flight.task})
        self._disk.leases.release(digest, holder)
        return await asyncio.get_running_loop().run_in_executor(self._checkers, self._disk.evict, digest)

    async def digests(self) -> frozenset[str]:
        """The digests of all adapters on this disk, held or not."""
        return await asyncio.get_running_loop().run_in_executor(self._checkers, self._disk.digests)

    async def why_store_unreadable(self) -> str | None:
        """Why no adapter can be downloaded now, with the fix; None when the store can be read."""
        return await asyncio.to_thread(self._store.bucket.why_unreadable)

    def close(self) -> None:
        """Release all leases and stop the threads. Only for a process whose engine has ended."""
        self._closed = True
        for flight in self._flights.values():
            flight.download.stop.set()
        self._checkers.shutdown(cancel_futures=True)
        self._downloaders.shutdown(cancel_futures=True)
        self._disk.leases.close()

    def _start(self, digest: str) -> _Flight:
        flight = _Flight(digest)
        flight.task = asyncio.create_task(self._fetch(flight))
        self._flights[digest] = flight
        flight.task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: _Flight) -> None:
        """Lease the digest to the callers that still wait. Runs before any of them continues."""
        del self._flights[flight.digest]
        if not flight.task.cancelled() and flight.task.exception() is None:
            for holder in +flight.waiters:
                self._disk.leases.join(flight.digest, holder)
        self._disk.leases.release(flight.digest, flight.holder)

    async def _fetch(self, flight: _Flight) -> Path:
        loop = asyncio.get_running_loop()
        path = self._disk.folder.path(flight.digest)
        try:
            if await loop.run_in_executor(self._checkers, self._disk.acquire, flight.digest, flight.holder):
                metrics.CACHE_FETCHES.labels("disk").inc()
                return path
            self._circuit.check()
            async with self._queue.slot(min(flight.owners, key=self._queue.downloads_of), flight.download):
                self._circuit.admit()
                await self._download_in_thread(flight)
        except DownloadQueueFull as full:
            metrics.CACHE_FETCHES.labels("failed").inc()
            raise self._too_many(flight.download, full) from full
        except BaseException:
            metrics.CACHE_FETCHES.labels("failed").inc()
            flight.download.stop.set()  # also when this task is cancelled: no thread continues without a caller
            raise
        metrics.CACHE_FETCHES.labels("store").inc()
        return path

    async def _download_in_thread(self, flight: _Flight) -> None:
        download = flight.download.begin(self._settings.cache_download_timeout_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._downloaders, self._download, flight)
        except (ObjectMissing, ObjectDamaged):
            self._circuit.succeeded()
            raise
        except StoreUnavailable as error:
            if error.kind in ("unreachable", "failing"):
                self._circuit.failed(next(iter(flight.owners)), unreachable=error.kind == "unreachable")
            raise
        else:
            self._circuit.succeeded()
            self._estimates.record(download.done_bytes, download.elapsed_s)
        finally:
            metrics.CIRCUIT_OPEN.set(self._circuit.is_open)

    def _download(self, flight: _Flight) -> None:
        digest, download = flight.digest, flight.download
        timeout_s = self._settings.cache_download_timeout_s
        with (
            metrics.DOWNLOAD_SECONDS.time(),
            self._disk.download_folder(digest, download, timeout_s=timeout_s) as incoming,
        ):
            download.check()
            if self._disk.acquire(digest, flight.holder):
                return  # another process has downloaded it meanwhile
            manifest = self._store.download_manifest(digest, incoming / MANIFEST_FILE, download)
            download.total_bytes = manifest.size_bytes
            self._disk.reserve(manifest, incoming)
            for file in manifest.files:
                self._store.download_file(digest, file, incoming / file.path, download)
            download.check()
            self._disk.install(incoming, digest, flight.holder)
            metrics.DOWNLOAD_BYTES.inc(manifest.size_bytes)

    def _still_loading(self, download: Download) -> AdapterStillLoading:
        eta_s = self._estimates.eta_s(download, rounds_ahead=self._queue.rounds_ahead(download))
        return AdapterStillLoading(
            f"the adapter is loading and needs about {eta_s:.1f} s more; retry after that",
            eta_s=eta_s,
            retry_after_s=retry_after_s(eta_s, self._settings.cache_retry_after_max_s),
        )

    def _too_many(self, download: Download, full: DownloadQueueFull) -> AdapterStillLoading:
        line = self._settings.cache_tenant_waiting_max if full.of_owner else self._settings.cache_waiting_max
        eta_s = self._estimates.eta_s(download, rounds_ahead=line / self._settings.cache_downloads_max)
        whose = "of this tenant " if full.of_owner else ""
        return AdapterStillLoading(
            f"{line} adapters {whose}already wait to load; retry later",
            eta_s=eta_s,
            retry_after_s=retry_after_s(eta_s, self._settings.cache_retry_after_max_s),
        )
