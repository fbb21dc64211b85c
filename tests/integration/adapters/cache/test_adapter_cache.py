"""The disk cache against the real S3 server: one download for many callers, a budget, healing, and other processes."""

import asyncio
import os
import threading

import pytest

from adapters.cache.adapter_cache import AdapterCache
from adapters.manifest import MANIFEST_FILE, read_manifest, sha256_of
from adapters.metrics import CACHE_FETCHES
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from adapters.object_store.s3 import Bucket, ObjectDamaged, ObjectMissing
from adapters.settings import CacheSettings, StoreSettings
from core.errors import Unavailable

WEIGHTS = "adapter_model.safetensors"


class CountingStore(RevisionStore):
    """The real store; counts the GETs of each key and can hold one of them back."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.gets: list[str] = []
        self.held_back: str | None = None
        self.asked, self.gate = threading.Event(), threading.Event()

    def download_manifest(self, digest, *arguments):
        self.note(revision_prefix(digest) + MANIFEST_FILE)
        return super().download_manifest(digest, *arguments)

    def download_file(self, digest, file, *arguments):
        self.note(revision_prefix(digest) + file.path)
        return super().download_file(digest, file, *arguments)

    def note(self, key):
        self.gets.append(key)
        if self.held_back is not None and key.startswith(self.held_back):
            self.asked.set()
            assert self.gate.wait(20)

    def weights_downloaded(self) -> int:
        return sum(key.endswith(WEIGHTS) for key in self.gets)


@pytest.fixture
def store(bucket_settings):
    store = CountingStore(Bucket(bucket_settings, StoreSettings(store_attempts_max=1)))
    store.bucket.ensure()
    return store


@pytest.fixture
def counting(store) -> CountingStore:
    return store


@pytest.fixture
def cache_settings(tmp_path):
    return CacheSettings(cache_dir=tmp_path / "cache", cache_free_bytes_min=0)


@pytest.fixture
def open_cache(counting, cache_settings):
    """Open a cache on the test's folder, as a replica's process does. Several may be open."""
    opened = []

    def open_one(**changes) -> AdapterCache:
        opened.append(AdapterCache(cache_settings.model_copy(update=changes), counting))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


def assert_whole(path) -> None:
    manifest = read_manifest((path / MANIFEST_FILE).read_bytes(), path.name)
    for file in manifest.files:
        assert sha256_of(str(path / file.path)) == (file.size_bytes, file.sha256)
    assert {file.name for file in path.iterdir()} == {MANIFEST_FILE, *(file.path for file in manifest.files)}


def adapters_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


async def test_twenty_callers_share_one_download(stored, open_cache, counting):
    digest, cache = stored(), open_cache()
    fetched = {tier: CACHE_FETCHES.labels(tier)._value.get() for tier in ("store", "disk")}
    paths = await asyncio.gather(*(cache.fetch(digest) for _ in range(20)))
    assert len(set(paths)) == 1
    assert_whole(paths[0])
    assert counting.weights_downloaded() == 1
    await cache.fetch(digest)
    assert counting.weights_downloaded() == 1
    assert cache._disk.leases.holders(digest) == {""}
    for tier in ("store", "disk"):
        assert CACHE_FETCHES.labels(tier)._value.get() == fetched[tier] + 1


async def test_caches_that_share_a_folder_share_one_whole_copy(stored, open_cache, counting, cache_settings):
    digest, caches = stored(), [open_cache() for _ in range(3)]
    for path in await asyncio.gather(*(cache.fetch(digest) for cache in caches)):
        assert_whole(path)
    assert counting.weights_downloaded() == 1
    assert adapters_in(cache_settings.cache_dir) == {digest}


async def test_a_cancelled_caller_does_not_cancel_the_others(stored, open_cache, counting):
    digest, cache = stored(), open_cache()
    counting.held_back = revision_prefix(digest)
    first, second = asyncio.create_task(cache.fetch(digest)), asyncio.create_task(cache.fetch(digest))
    await asyncio.to_thread(counting.asked.wait, 20)
    first.cancel()
    counting.gate.set()
    assert_whole(await second)
    assert first.cancelled()
    assert counting.weights_downloaded() == 1


async def test_a_repair_never_removes_a_folder_that_an_engine_reads(stored, open_cache):
    digest, engine = stored(), open_cache()
    path = await engine.fetch(digest)
    folder = os.open(path, os.O_RDONLY)
    (path / WEIGHTS).write_bytes(b"damaged")
    await open_cache().fetch(digest)
    assert os.path.samestat(os.fstat(folder), path.stat()), "it is the same folder, with its files replaced one by one"
    os.close(folder)


async def test_damaged_objects_in_the_store_are_never_served(stored, open_cache, counting, cache_settings):
    digest, cache = stored(), open_cache()
    key = revision_prefix(digest) + WEIGHTS
    counting.download(key, cache_settings.cache_dir / "copy", bytes_max=1_000_000)
    content = (cache_settings.cache_dir / "copy").read_bytes()
    for bad in (content[:-1] + b"X", content + b"X", content[:-1]):
        counting.bucket.client.put_object(Bucket=counting.bucket.name, Key=key, Body=bad)
        with pytest.raises(ObjectDamaged):
            await cache.fetch(digest)
    assert digest not in adapters_in(cache_settings.cache_dir)
    assert cache._disk.leases.holders(digest) == frozenset()
    counting.bucket.client.put_object(Bucket=counting.bucket.name, Key=key, Body=content)
    assert_whole(await cache.fetch(digest))


async def test_an_absent_digest_is_missing_and_a_failed_fetch_can_be_retried(stored, open_cache, counting):
    cache = open_cache()
    with pytest.raises(ObjectMissing):
        await cache.fetch("0" * 64)
    digest = stored()
    counting.bucket.client.delete_object(Bucket=counting.bucket.name, Key=revision_prefix(digest) + MANIFEST_FILE)
    with pytest.raises(ObjectMissing):
        await cache.fetch(digest)
    assert stored() == digest
    assert_whole(await cache.fetch(digest))


async def test_a_download_that_takes_too_long_ends_and_frees_its_slot(stored, open_cache, counting):
    digest, cache = stored(), open_cache(cache_download_timeout_s=2, cache_downloads_max=1)
    counting.held_back = revision_prefix(digest) + "adapter_config.json"
    waiting = asyncio.create_task(cache.fetch(digest))
    await asyncio.to_thread(counting.asked.wait, 20)
    await asyncio.sleep(2.2)  # beyond the whole download's deadline, which this test checks
    counting.gate.set()
    with pytest.raises(Unavailable) as failed:
        await waiting
    assert failed.value.code == "store_timeout"
    assert_whole(await cache.fetch(digest))
