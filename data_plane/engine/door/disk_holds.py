"""Adapters on the disk as the door uses them, by engine name: fetched, kept while a tier above may read them again,
given back, forgotten. How they get to the disk and stay whole there is ``adapters.cache``.
"""

import asyncio
import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from adapters.cache import DiskCache
from adapters.cache_errors import CacheFailed
from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE, read_manifest
from core.errors import NotFound


class OtherBaseModel(NotFound):
    """The adapter was made for another base model than this engine serves."""

    default_code = "adapter_of_other_base_model"


class DiskHolds:
    """One event loop. Every name that was fetched holds its digest until ``release``."""

    def __init__(self, cache: DiskCache, base_model: str, deadline_s: float) -> None:
        self._cache = cache
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
        return _digest(name) in await self._cache.digests()

    async def fetch(self, name: str, tenant: str | None) -> Path:
        """The folder of the adapter's verified files. Raises ``NotFound`` for one that is not stored or of another base
        model, ``AdapterLoading`` when it takes too long, another ``Unavailable`` when S3 or the disk fails.
        """
        self._names.add(name)  # before the wait: whoever gives up meanwhile is released by the next look around
        try:
            folder = await self._from_cache(name, tenant)
        except CacheFailed:  # also when somebody removed the folder while it was being written to
            folder = await self._from_cache(name, tenant)
        manifest = await asyncio.to_thread(lambda: read_manifest((folder / MANIFEST_FILE).read_bytes(), _digest(name)))
        if manifest.base_model != self._base_model:
            raise OtherBaseModel(f"the adapter is for {manifest.base_model}; this engine serves {self._base_model}")
        return folder

    async def _from_cache(self, name: str, tenant: str | None) -> Path:
        return await self._cache.fetch(_digest(name), holder=name, tenant=tenant, deadline_s=self._deadline_s)

    def suspect(self, folder: Path) -> None:
        """The engine could not use these files: the next ``fetch`` looks at every byte of them, as it does whenever
        their times have changed.
        """
        with suppress(OSError):  # what is gone is fetched again anyway
            os.utime(folder / WEIGHTS_FILE)

    def release(self, name: str) -> None:
        """No tier above reads it again: the disk may evict it."""
        self._names.discard(name)
        self._cache.release(_digest(name), name)

    async def forget(self, name: str) -> list[str]:
        """Remove it from the disk; returns its digest when it is still there and nobody else has a right to it."""
        self._names.discard(name)
        others = await self._cache.forget(_digest(name), name)
        left = _digest(name) in await self._cache.digests()
        return [_digest(name)] if left and not others else []


def _digest(name: str) -> str:
    return name.rpartition("@")[2]
