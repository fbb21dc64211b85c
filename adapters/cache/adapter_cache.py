"""Adapters on a replica's disk: fetched once, verified, kept within a byte budget, never taken from under an engine.

vLLM re-reads the path of an adapter that fell out of its memory, in the middle of a step, and a missing file stops the
engine for everyone. So a digest that was handed out stays until its last holder's ``release`` or until its process is
dead, also beyond the budget: then a warning and a metric say so, and only a disk that is nearly full refuses new ones.
What is on the disk is served whatever S3 does. Fails closed for an adapter that cannot be verified, and for it alone.
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

_CHECKERS: Final = 4  # threads that verify what is on the disk already
_CIRCUIT_OPEN_MAX_S: Final = 30


class _Flight:
    """One fetch that any number of callers wait for. It holds the digest itself until it has landed."""

    def __init__(self, digest: str, owner: str) -> None:
        self.digest, self.owner = digest, owner
        self.download = Download(digest)
        self.waiters: Counter[str] = Counter()
        self.holder = f"loading {id(self):x}"
        self.task: asyncio.Task[Path]


class AdapterCache:
    """``fetch`` from one event loop, any number of callers; several processes may share a folder."""

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
        """The folder of an adapter's verified files, which stay there until ``release`` by the same ``holder``: the
        engine's name for the adapter, since several names may share a digest.

        Callers at the same time share one download; a caller that is cancelled does not cancel it. Downloads take turns
        by ``tenant``, any string that stands for whose it is; without one, each ``holder`` has a line of its own.
        After ``deadline_s`` raises ``AdapterStillLoading`` with an estimate, and the download goes on. Also raises
        ``ObjectMissing`` for a digest that is not stored and ``Unavailable`` when S3 or the disk cannot give it.
        """
        owner = holder if tenant is None else tenant
        if (flight := self._flights.get(digest)) is None:
            flight = self._start(digest, owner)
        else:
            self._queue.share(owner, flight.download)
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

    def release(self, digest: str, holder: str = "") -> None:
        """The engine has forgotten this name in every tier: its files may be evicted from now on, unless another name
        or process holds them. Returns at once; safe to repeat.
        """
        self._disk.leases.release(digest, holder)
        if not self._closed:
            self._checkers.submit(self._disk.flush)

    async def evict(self, digest: str, holder: str = "") -> frozenset[str]:
        """``release``, stop a download that nobody else waits for, and remove the files.

        Returns who still holds the digest on this machine, under another name or in another process; empty when
        nothing of it is left here. Safe to repeat. Raises ``Unavailable`` when the disk fails.
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
        """Every adapter that lies on this disk, whoever holds it."""
        return await asyncio.get_running_loop().run_in_executor(self._checkers, self._disk.digests)

    def close(self) -> None:
        """Release everything and stop the threads. Only for a process whose engine is gone."""
        self._closed = True
        for flight in self._flights.values():
            flight.download.stop.set()
        self._checkers.shutdown(cancel_futures=True)
        self._downloaders.shutdown(cancel_futures=True)
        self._disk.leases.close()

    def _start(self, digest: str, owner: str) -> _Flight:
        flight = _Flight(digest, owner)
        flight.task = asyncio.create_task(self._fetch(flight))
        self._flights[digest] = flight
        flight.task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: _Flight) -> None:
        """Runs before any caller goes on: those who still wait hold the digest now."""
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
            async with self._queue.slot(flight.owner, flight.download):
                self._circuit.admit()
                await self._download_in_thread(flight)
        except DownloadQueueFull as full:
            metrics.CACHE_FETCHES.labels("failed").inc()
            raise self._too_many(flight.download, full) from full
        except BaseException:
            metrics.CACHE_FETCHES.labels("failed").inc()
            flight.download.stop.set()  # also when this task is cancelled: no thread goes on for nobody
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
                self._circuit.failed(flight.owner, unreachable=error.kind == "unreachable")
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
                return  # another process was faster
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
            f"the adapter is being loaded, about {eta_s:.1f} s to go; send the request again then",
            eta_s=eta_s,
            retry_after_s=retry_after_s(eta_s, self._settings.cache_retry_after_max_s),
        )

    def _too_many(self, download: Download, full: DownloadQueueFull) -> AdapterStillLoading:
        line = self._settings.cache_tenant_waiting_max if full.of_owner else self._settings.cache_waiting_max
        eta_s = self._estimates.eta_s(download, rounds_ahead=line / self._settings.cache_downloads_max)
        whose = "of this tenant " if full.of_owner else ""
        return AdapterStillLoading(
            f"{line} adapters {whose}wait to be loaded already; send the request again later",
            eta_s=eta_s,
            retry_after_s=retry_after_s(eta_s, self._settings.cache_retry_after_max_s),
        )
