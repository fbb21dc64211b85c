"""Resolves adapter names for vLLM: from an immutable engine name to a folder of the adapter cache.

Used in the API server process alone: that is where unknown names are resolved (``resolve_lora`` in vLLM 0.32's
``entrypoints/openai/models/serving.py``), after the engine's middleware has loaded them. Fails closed: a name
of another shape, an absent revision or one that cannot be verified is never loaded.
"""

from pathlib import Path
from typing import Final

import structlog
from fastapi import HTTPException
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from adapters.cache.adapter_cache import AdapterCache
from adapters.cache.errors import CacheFailed, disk_errors
from adapters.manifest import MANIFEST_FILE, AdapterManifest, read_manifest
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket, ObjectMissing
from adapters.settings import CacheSettings, StoreSettings
from core.adapter_names import adapter_of, digest_of, is_engine_name
from core.errors import Unavailable
from core.settings import S3Settings

REGISTERED_NAME: Final = "tenora"

_log: Final = structlog.get_logger()
_ANY_NUMBER: Final = 1  # vLLM assigns its own number


class TenoraResolver(LoRAResolver):  # type: ignore[misc] # vllm ships no types
    """Resolves ``<adapter id>@<digest>`` to the folder of that digest, for adapters of one base model."""

    def __init__(self, cache: AdapterCache, base_model: str) -> None:
        self.cache = cache
        self._base_model = base_model

    async def resolve_lora(
        self,
        base_model_name: str,  # noqa: ARG002 - vLLM's signature; it passes a path, not our id
        lora_name: str,
    ) -> LoRARequest | None:
        """The request with which vLLM loads the adapter, or None, which vLLM answers with 404.

        Names of any other shape cost no input or output. When the store or the disk fails, the caller gets 503, since
        404 would say that the adapter does not exist; the engine and other requests are not touched.
        """
        if not is_engine_name(lora_name):
            return None
        digest = digest_of(lora_name)
        try:
            path, manifest = await self._fetch(digest, lora_name)
        except ObjectMissing:
            _log.warning("adapter revision not in the store", adapter=lora_name)
            return None
        except Unavailable as error:
            _log.error("adapter could not be fetched", adapter=lora_name, code=error.code, reason=error.message)
            raise HTTPException(503, f"adapter {adapter_of(lora_name)} cannot be fetched now ({error.code})") from error
        if manifest.base_model != self._base_model:
            _log.error("adapter of another base model", adapter=lora_name, base_model=manifest.base_model)
            return None
        return LoRARequest(lora_name=lora_name, lora_int_id=_ANY_NUMBER, lora_path=str(path))

    async def _fetch(self, digest: str, name: str) -> tuple[Path, AdapterManifest]:
        try:
            return await self._from_cache(digest, name)
        except CacheFailed:  # also when somebody removed the folder meanwhile
            return await self._from_cache(digest, name)

    async def _from_cache(self, digest: str, name: str) -> tuple[Path, AdapterManifest]:
        path = await self.cache.fetch(digest, holder=name)
        with disk_errors(f"adapter {digest}"):
            return path, read_manifest((path / MANIFEST_FILE).read_bytes(), digest)


def register(base_model: str, s3: S3Settings, store: StoreSettings, cache: CacheSettings) -> AdapterCache:
    """Register the resolver with vLLM. ``base_model`` is the id of the base model that it serves. Call it once, in the
    API server process. Returns the resolver's cache.
    """
    disk = AdapterCache(cache, RevisionStore(Bucket(s3, store)))
    LoRAResolverRegistry.register_resolver(REGISTERED_NAME, TenoraResolver(disk, base_model))
    return disk


def registered_cache() -> AdapterCache:
    """Return the cache of the registered resolver, for other code of this process that loads or removes adapters.

    Raises ``KeyError`` if no resolver is registered, that is, outside a replica.
    """
    cache: AdapterCache = LoRAResolverRegistry.get_resolver(REGISTERED_NAME).cache
    return cache
