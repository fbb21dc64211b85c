"""Leases on adapters in the disk cache, by engine name: an adapter's files stay on disk while a tier above may read
them again.

``adapters.cache.adapter_cache`` downloads the files and verifies them.
"""

import asyncio
import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from adapters.cache.adapter_cache import AdapterCache
from adapters.cache.errors import CacheFailed, disk_errors
from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, read_manifest
from core.adapter_names import digest_of
from core.errors import NotFound
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters


class OtherBaseModel(NotFound):
    """The adapter was made for another base model than this engine serves."""

    default_code = "adapter_of_other_base_model"


class DiskLeases:
    """Used on one event loop. Each fetched name holds a lease on its digest until ``release``."""

    def __init__(self, cache: AdapterCache, revoked: RevokedAdapters, base_model: str, deadline_s: float) -> None:
        self._cache = cache
        self._revoked = revoked
        self._base_model = base_model
        self._deadline_s = deadline_s
        self._names: set[str] = set()

    @property
    def names(self) -> AbstractSet[str]:
        """Names that hold a lease on their digest."""
        return self._names

    async def digests(self) -> frozenset[str]:
        """All digests on disk, with or without a lease."""
        return await self._cache.digests()

    async def why_store_unreadable(self) -> str | None:
        """Why no adapter can be downloaded now, with the fix; None when the store can be read."""
        return await self._cache.why_store_unreadable()

    async def has(self, name: str) -> bool:
        """Whether the adapter is on disk, so that no download is needed."""
        return digest_of(name) in await self._cache.digests()

    def is_coming(self, name: str) -> bool:
        """Whether a prefetch or another request has begun its download already."""
        return self._cache.is_fetching(digest_of(name))

    async def fetch(self, name: str, tenant: str | None) -> Path:
        """The folder of the adapter's verified files, downloaded if need be. Raises ``NotFound`` for an adapter that is
        not stored, revoked or of another base model, ``AdapterStillLoading`` when the download takes too long, another
        ``Unavailable`` when S3 or the disk fails.
        """
        self._revoked.require_not_revoked(name)
        self._names.add(name)  # before the wait: if the caller gives up meanwhile, the next sweep releases the lease
        try:
            folder, manifest = await self._from_cache(name, tenant)
        except CacheFailed:  # for example when the folder was deleted meanwhile
            self._revoked.require_not_revoked(name)
            folder, manifest = await self._from_cache(name, tenant)
        if manifest.base_model != self._base_model:
            raise OtherBaseModel(f"the adapter is for {manifest.base_model}; this engine serves {self._base_model}")
        return folder

    async def _from_cache(self, name: str, tenant: str | None) -> tuple[Path, AdapterManifest]:
        digest = digest_of(name)
        folder = await self._cache.fetch(digest, holder=name, tenant=tenant, deadline_s=self._deadline_s)
        with disk_errors(f"adapter {digest}"):
            return folder, await asyncio.to_thread(_manifest, folder, digest)

    def mark_suspect(self, folder: Path) -> None:
        """Record that the engine could not use these files. The next ``fetch`` verifies every byte of them, as it does
        whenever their modification times have changed.
        """
        with suppress(OSError):  # a missing file is downloaded again anyway
            os.utime(folder / WEIGHTS_FILE)

    def release(self, name: str) -> None:
        """Release the lease: no tier above reads the files again, and the cache may evict them."""
        self._names.discard(name)
        self._cache.release(digest_of(name), name)

    async def evict(self, name: str) -> frozenset[str]:
        """Release the lease and delete the files, unless others hold a lease on them. Returns those leaseholders."""
        self._names.discard(name)
        return await self._cache.evict(digest_of(name), name)


def _manifest(folder: Path, digest: str) -> AdapterManifest:
    return read_manifest((folder / MANIFEST_FILE).read_bytes(), digest)
