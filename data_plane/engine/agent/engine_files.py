"""The base model's files of one replica, and whether the replica is about to run what its pool's revision says.

A replica without a revision starts with any files. Fails closed: with one, it starts only what has the same digest.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import structlog

from adapters.base_weights import WeightCache, WeightStore, read_weights
from adapters.object_store.download_progress import Download
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.settings import ModelCacheSettings, StoreSettings
from core.contracts.pool_revisions import PoolRevision, settings_of
from core.errors import Conflict
from core.settings import S3Settings
from data_plane.engine.settings import ReplicaSettings

_log: Final = structlog.get_logger()
_REPORT_INTERVAL_S: Final = 1.0


class EngineFiles:
    """``close`` lets other replicas of this machine evict the files."""

    def __init__(self, settings: ReplicaSettings, *, engine_name: str) -> None:
        self._settings = settings
        self._engine_name = engine_name
        self._held = contextlib.ExitStack()
        self.revision = ""  # the digest of what runs, once ``prepare`` has checked it
        self.doing = ""  # what ``prepare`` does at the moment

    async def prepare(self) -> Path:
        """The folder of the checkpoint, downloaded if need be. Raises AppError, with the code ``revision_mismatch`` for
        a replica that would run anything but its pool's revision, and OSError.
        """
        settings = self._settings
        if settings.model_path is not None:
            folder, digest = settings.model_path, ""
            if settings.pool_revision:
                self.doing = "it reads its base weights"
                digest = (await asyncio.to_thread(read_weights, folder)).digest
        else:
            folder, digest = await self._downloaded(settings.model_digest), settings.model_digest
        self.doing = ""
        if settings.pool_revision:
            self._require_revision(digest)
        return folder

    def close(self) -> None:
        self._held.close()

    async def _downloaded(self, digest: str) -> Path:
        cache, download = ModelCacheSettings(), Download(f"base weights {digest}").begin()
        files = WeightCache(cache.model_cache_dir, bytes_max=cache.model_cache_bytes)
        store = WeightStore(RevisionStore(Bucket(S3Settings(), StoreSettings())))
        reporting = asyncio.create_task(self._report(download))
        try:
            return await asyncio.to_thread(self._held.enter_context, files.held(digest, store, download))
        finally:
            download.stop.set()  # when the agent stops, the thread must too
            reporting.cancel()

    async def _report(self, download: Download) -> None:
        while True:
            done, total = download.done_bytes >> 20, download.total_bytes
            of_all = "" if total is None else f" of {total >> 20}"
            self.doing = f"it gets its base weights: {done}{of_all} MiB"
            await asyncio.sleep(_REPORT_INTERVAL_S)

    def _require_revision(self, weights: str) -> None:
        mine = PoolRevision(
            base_model=self._settings.base_model,
            weights=weights,
            engine=self._engine_name,
            settings=settings_of(self._settings),
        )
        self.revision = mine.digest
        if self.revision != self._settings.pool_revision:
            _log.error("this replica would run another revision", runs=mine, digest=self.revision)
            raise Conflict(
                f"revision_mismatch: the pool's revision is {self._settings.pool_revision}, and this replica would run "
                f"{self.revision}: {mine.engine}, weights {weights}, {mine.settings}. Give it the settings of the "
                "revision, or move the pool to this one",
                code="revision_mismatch",
            )
