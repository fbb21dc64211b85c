"""Adapters on the disk as the door uses them, by engine name: fetched, kept while a tier above may read them again,
given back, forgotten. How they get to the disk and stay whole there is ``adapters.cache.adapter_cache``.
"""

import asyncio
import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from adapters.cache.adapter_cache import DiskCache
from adapters.cache.errors import CacheFailed, disk_errors
from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, read_manifest
from core.adapter_names import digest_of
from core.errors import NotFound
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters


class OtherBaseModel(NotFound):
    """The adapter was made for another base model than this engine serves."""

    default_code = "adapter_of_other_base_model"


class DiskLeases:
    """One event loop. Every name that was fetched holds its digest until ``release``."""

    def __init__(self, cache: DiskCache, refused: RevokedAdapters, base_model: str, deadline_s: float) -> None:
        self._cache = cache
        self._refused = refused
        self._base_model = base_model
        self._deadline_s = deadline_s
        self._names: set[str] = set()

    @property
    def names(self) -> AbstractSet[str]:
        """Names that hold their digest."""
        return self._names

    async def digests(self) -> frozenset[str]:
        """Everything on the disk, whoever holds it."""
        return await self._cache.digests()

    async def has(self, name: str) -> bool:
        """Whether the adapter need not be downloaded."""
        return digest_of(name) in await self._cache.digests()

    async def fetch(self, name: str, tenant: str | None) -> Path:
        """The folder of the adapter's verified files. Raises ``NotFound`` for one that is not stored, revoked or of
        another base model, ``AdapterLoading`` when it takes too long, another ``Unavailable`` when S3 or the disk
        fails.
        """
        self._refused.check(name)
        self._names.add(name)  # before the wait: whoever gives up meanwhile is released by the next look around
        try:
            folder, manifest = await self._from_cache(name, tenant)
        except CacheFailed:  # also when somebody removed the folder meanwhile
            self._refused.check(name)
            folder, manifest = await self._from_cache(name, tenant)
        if manifest.base_model != self._base_model:
            raise OtherBaseModel(f"the adapter is for {manifest.base_model}; this engine serves {self._base_model}")
        return folder

    async def _from_cache(self, name: str, tenant: str | None) -> tuple[Path, AdapterManifest]:
        digest = digest_of(name)
        folder = await self._cache.fetch(digest, holder=name, tenant=tenant, deadline_s=self._deadline_s)
        with disk_errors(f"adapter {digest}"):
            return folder, await asyncio.to_thread(_manifest, folder, digest)

    def suspect(self, folder: Path) -> None:
        """The engine could not use these files: the next ``fetch`` looks at every byte of them, as it does whenever
        their times have changed.
        """
        with suppress(OSError):  # what is gone is fetched again anyway
            os.utime(folder / WEIGHTS_FILE)

    def release(self, name: str) -> None:
        """No tier above reads it again: the disk may evict it."""
        self._names.discard(name)
        self._cache.release(digest_of(name), name)

    async def forget(self, name: str) -> frozenset[str]:
        """Remove it from the disk unless others have a right to it: who has."""
        self._names.discard(name)
        return await self._cache.forget(digest_of(name), name)


def _manifest(folder: Path, digest: str) -> AdapterManifest:
    return read_manifest((folder / MANIFEST_FILE).read_bytes(), digest)
