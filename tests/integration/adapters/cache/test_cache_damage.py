"""The cache on a really full disk, and in a folder that another process changes during use."""

import asyncio
import os
import shutil
import subprocess
import threading

import pytest

from adapters.cache.adapter_cache import AdapterCache
from adapters.cache.errors import CacheFailed, CacheFull
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from adapters.object_store.s3 import Bucket
from adapters.settings import CacheSettings, StoreSettings
from core.errors import Unavailable
from tests.conftest import wait_until
from tests.fixtures.faults.s3 import Fault, faulty_s3
from tests.fixtures.uploads.stored_revisions import make_revision, objects_of

MIB = 1 << 20
REVISIONS = [make_revision(MIB, seed) for seed in range(6)]
DIGESTS = [manifest.digest for manifest, _ in REVISIONS]


@pytest.fixture(scope="module")
def server():
    with faulty_s3() as s3:
        yield s3, RevisionStore(Bucket(s3.settings, StoreSettings(store_stall_timeout_s=0.5)))


@pytest.fixture
def faulty(server):
    server[0].reset({key: content for revision in REVISIONS for key, content in objects_of(*revision).items()})
    return server[0]


@pytest.fixture
def open_cache(faulty, server, tmp_path):
    opened = []

    def open_one(folder=tmp_path / "cache", **changes) -> AdapterCache:
        settings = CacheSettings(**{"cache_dir": folder, "cache_free_bytes_min": 0} | changes)
        opened.append(AdapterCache(settings, server[1]))
        return opened[-1]

    yield open_one
    faulty.silent.set()
    for cache in opened:
        cache.close()


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"NOT TESTED: a disk that is full, since this user may not mount one ({mounted.stderr.strip()})")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def assert_whole(path):
    _, files = REVISIONS[DIGESTS.index(path.name)]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files


def fill(disk, leave_bytes=0):
    filler = disk / "filler"
    with filler.open("wb") as out:
        os.posix_fallocate(out.fileno(), 0, max(1, shutil.disk_usage(disk).free - leave_bytes))
    return filler


async def test_a_disk_that_fills_up_during_a_download_refuses_that_adapter_and_serves_the_others(
    open_cache, faulty, small_disk
):
    cache = open_cache(small_disk / "cache")
    assert_whole(await cache.fetch(DIGESTS[0]))
    faulty.faults[revision_prefix(DIGESTS[1]) + CONFIG_FILE] = [Fault(stall_after=1, times=1)]
    second = asyncio.create_task(cache.fetch(DIGESTS[1]))
    await asyncio.to_thread(wait_until, lambda: (revision_prefix(DIGESTS[1]) + CONFIG_FILE, 0, 2) in faulty.requests)
    filler = fill(small_disk)
    with pytest.raises(CacheFull, match="TENORA_CACHE_DIR") as refused:
        await second
    assert refused.value.code == "adapter_cache_full"
    assert refused.value.retry_after_s
    assert not any((small_disk / "cache" / ".incoming").iterdir())
    assert_whole(await cache.fetch(DIGESTS[0], holder="another name"))
    filler.unlink()
    assert_whole(await cache.fetch(DIGESTS[1]))


async def test_a_full_disk_evicts_unleased_adapters_and_keeps_leased_ones(open_cache, small_disk):
    cache = open_cache(small_disk / "cache")
    for digest in DIGESTS[:3]:
        await cache.fetch(digest)
    with pytest.raises(CacheFull):
        await cache.fetch(DIGESTS[3])
    cache.release(DIGESTS[1])
    assert_whole(await cache.fetch(DIGESTS[3]))
    assert await cache.digests() == {DIGESTS[0], DIGESTS[2], DIGESTS[3]}


async def test_a_process_started_on_a_full_disk_serves_the_cached_adapters(open_cache, small_disk):
    former = open_cache(small_disk / "cache")
    for digest in DIGESTS[:3]:
        await former.fetch(digest)
    former.close()
    fill(small_disk)
    cache = open_cache(small_disk / "cache")
    left = await cache.digests()
    assert len(left) == 2, "one was evicted to make room for the record of leases"
    for digest in left:
        assert_whole(await cache.fetch(digest))


def cut(folder):
    (folder / WEIGHTS_FILE).write_bytes(b"short")


def remove_cache(folder):
    shutil.rmtree(folder.parent)


def remove_bookkeeping(folder):
    for name in (".leases", ".locks", ".incoming", ".trash"):
        shutil.rmtree(folder.parent / name)


DAMAGES = [cut, remove_cache, remove_bookkeeping]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_during_the_life_of_a_process_is_found_and_repaired(open_cache, damage):
    cache, other = open_cache(), open_cache()
    path = await cache.fetch(DIGESTS[0])
    damage(path)
    assert_whole(await cache.fetch(DIGESTS[0]))
    assert_whole(await cache.fetch(DIGESTS[1]))
    assert all(cache._disk.leases.holders(digest) for digest in DIGESTS[:2])
    await other.fetch(DIGESTS[2])
    assert await other.evict(DIGESTS[0]), "it still knows its leases"
    assert_whole(path)


@pytest.mark.parametrize("damage", [cut, remove_cache])
async def test_an_adapter_damaged_while_s3_is_down_is_refused_with_a_code_and_repaired_later(
    open_cache, faulty, damage
):
    cache = open_cache(cache_circuit_open_s=0.1)
    path = await cache.fetch(DIGESTS[0])
    await cache.fetch(DIGESTS[1])
    damage(path)
    for key in faulty.objects:
        faulty.faults[key] = [Fault(status=503)]
    with pytest.raises(Unavailable) as failed:
        await cache.fetch(DIGESTS[0])
    assert failed.value.code == "store_unavailable"
    if damage is not remove_cache:
        assert_whole(await cache.fetch(DIGESTS[1]))
    faulty.faults.clear()
    assert_whole(await cache.fetch(DIGESTS[0]))


async def test_a_cache_whose_folder_became_a_file_fails_with_a_code_and_recovers(open_cache, tmp_path):
    cache = open_cache()
    await cache.fetch(DIGESTS[0])
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    for _ in range(2):
        with pytest.raises(CacheFailed, match="TENORA_CACHE_DIR"):
            await cache.fetch(DIGESTS[0])
        with pytest.raises(CacheFailed):
            await cache.digests()
    cache.release(DIGESTS[0])
    (tmp_path / "cache").unlink()
    assert_whole(await cache.fetch(DIGESTS[0]))


async def test_removals_during_fetches_never_serve_a_damaged_adapter(open_cache, tmp_path):
    cache, done = open_cache(), threading.Event()

    def remove():
        while not done.wait(0.02):
            shutil.rmtree(tmp_path / "cache" / DIGESTS[0], ignore_errors=True)

    vandal = threading.Thread(target=remove)
    vandal.start()
    try:
        for _ in range(30):
            results = await asyncio.gather(
                *(cache.fetch(digest) for digest in (*DIGESTS[:3], DIGESTS[0])), return_exceptions=True
            )
            for result in results[1:3]:
                assert_whole(result)
            for result in results:
                assert isinstance(result, CacheFailed) or not isinstance(result, BaseException)
    finally:
        done.set()
        await asyncio.to_thread(vandal.join)
    assert_whole(await cache.fetch(DIGESTS[0]))
