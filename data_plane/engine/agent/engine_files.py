"""The base model's files of one replica, and whether the replica is about to run what its pool's revision says.

A replica without a revision starts with any files. Fails closed: with one, it starts only what has the same digest.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from adapters.base_weights import WeightCache, WeightStore, read_weights
from adapters.object_store.download_progress import Download
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.settings import ModelCacheSettings, StoreSettings
from core.contracts.pool_revisions import PoolRevision, settings_of
from core.errors import Conflict
from core.settings import S3Settings
from data_plane.engine.settings import ReplicaSettings


class EngineFiles:
    """``close`` lets other replicas of this machine evict the files."""

    def __init__(self, settings: ReplicaSettings, *, engine_name: str) -> None:
        self._settings = settings
        self._engine_name = engine_name
        self._held = contextlib.ExitStack()
        self._doing: Callable[[], str] = str

    @property
    def doing(self) -> str:
        """What ``prepare`` does at the moment, for people."""
        return self._doing()

    async def prepare(self) -> Path:
        """The folder of the checkpoint, downloaded if need be. Raises AppError, with the code ``revision_mismatch`` for
        a replica that would run anything but its pool's revision, and OSError.
        """
        settings = self._settings
        if settings.model_path is not None:
            folder, digest = settings.model_path, ""
            if settings.pool_revision:
                self._doing = lambda: "it reads its base weights"
                digest = (await asyncio.to_thread(read_weights, folder)).digest
        else:
            folder, digest = await self._downloaded(settings.model_digest), settings.model_digest
        self._doing = str
        if settings.pool_revision:
            self._require_revision(digest)
        return folder

    def close(self) -> None:
        self._held.close()

    async def _downloaded(self, digest: str) -> Path:
        cache, download = ModelCacheSettings(), Download(f"base weights {digest}").begin()
        files = WeightCache(cache.model_cache_dir, bytes_max=cache.model_cache_bytes)
        store = WeightStore(RevisionStore(Bucket(S3Settings(), StoreSettings())))
        self._doing = lambda: _progress_of(download)
        try:
            return await asyncio.to_thread(self._held.enter_context, files.held(digest, store, download))
        finally:
            download.stop.set()  # when the agent stops, the thread must too

    def _require_revision(self, weights: str) -> None:
        mine = PoolRevision(
            base_model=self._settings.base_model,
            weights=weights,
            engine=self._engine_name,
            settings=settings_of(self._settings),
        )
        if mine.digest != self._settings.pool_revision:
            raise Conflict(
                f"revision_mismatch: the pool's revision is {self._settings.pool_revision}, and this replica would run "
                f"{mine.digest}: {mine.engine}, weights {weights}, {mine.settings}. Give it the settings of the "
                "revision, or move the pool to this one",
                code="revision_mismatch",
            )


def _progress_of(download: Download) -> str:
    of_all = "" if download.total_bytes is None else f" of {download.total_bytes >> 20}"
    return f"it gets its base weights: {download.done_bytes >> 20}{of_all} MiB"
