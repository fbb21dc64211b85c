"""One tenant's slow, broken or many adapters, and an S3 outage, do not affect other tenants."""

import asyncio
import contextlib
import time

import pytest

from adapters.cache.adapter_cache import AdapterCache
from adapters.cache.errors import AdapterStillLoading
from adapters.manifest import WEIGHTS_FILE
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from adapters.object_store.s3 import Bucket, ObjectDamaged
from adapters.settings import CacheSettings, StoreSettings
from core.errors import Unavailable
from tests.conftest import wait_until
from tests.fixtures.faults.s3 import Fault, faulty_s3
from tests.fixtures.uploads.stored_revisions import make_revision, objects_of

REVISIONS = [make_revision(300_000, seed) for seed in range(60)]
DIGESTS = [manifest.digest for manifest, _ in REVISIONS]
STORE = StoreSettings(store_stall_timeout_s=20, store_connect_timeout_s=1, store_attempts_max=2)


@pytest.fixture
def faulty():
    with faulty_s3() as s3:
        s3.objects = {key: content for revision in REVISIONS for key, content in objects_of(*revision).items()}
        yield s3


@pytest.fixture
def open_cache(faulty, tmp_path):
    opened = []

    def open_one(**changes) -> AdapterCache:
        settings = {"cache_dir": tmp_path / "cache", "cache_free_bytes_min": 0, "cache_stall_s": 0.3} | changes
        opened.append(AdapterCache(CacheSettings(**settings), RevisionStore(Bucket(faulty.settings, STORE))))
        return opened[-1]

    yield open_one
    faulty.silent.set()
    for cache in opened:
        cache.close()


def stall(faulty, digests, fault=None):
    for digest in digests:
        for key in [key for key in faulty.objects if key.startswith(revision_prefix(digest))]:
            faulty.faults[key] = [fault or Fault(stall_after=-1)]


@contextlib.asynccontextmanager
async def waiting(cache, digests, tenant):
    """Callers that wait for these adapters while the block runs."""
    tasks = [asyncio.create_task(cache.fetch(digest, holder=f"{tenant}@{digest}", tenant=tenant)) for digest in digests]
    await asyncio.sleep(0)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def seconds_for(cache, digests, tenant) -> list[float]:
    """The duration of each fetch, one after the other."""
    took = []
    for digest in digests:
        started = time.monotonic()
        await asyncio.wait_for(cache.fetch(digest, holder=f"{tenant}@{digest}", tenant=tenant), 15)
        took.append(time.monotonic() - started)
    return took


async def test_fifty_stalled_adapters_of_one_tenant_do_not_delay_another(open_cache, faulty):
    cache = open_cache()
    alone = await seconds_for(cache, DIGESTS[50:55], "b")
    stall(faulty, DIGESTS[:50])
    async with waiting(cache, DIGESTS[:50], "a") as stalled:
        await asyncio.sleep(0.1)
        beside = await seconds_for(cache, DIGESTS[55:60], "b")
        assert not any(task.done() for task in stalled)
    print(f"\nworst of b: alone {1000 * max(alone):.0f} ms, beside 50 stalled of a {1000 * max(beside):.0f} ms")
    assert max(beside) < max(alone) + 1


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(cut_after=10), Fault(garble=True)])
async def test_a_broken_object_fails_no_other_download(open_cache, faulty, fault):
    cache = open_cache()
    stall(faulty, DIGESTS[:1], fault)
    for _ in range(4):
        results = await asyncio.gather(
            *(cache.fetch(digest, tenant=tenant) for digest, tenant in zip(DIGESTS[:3], "aab", strict=True)),
            return_exceptions=True,
        )
        assert isinstance(results[0], Unavailable)
        assert results[1].is_dir()
        assert results[2].is_dir()
        cache.release(DIGESTS[1])
        await cache.evict(DIGESTS[1])


async def test_a_caller_past_its_deadline_gets_a_retry_time_and_then_the_adapter(open_cache, faulty):
    cache = open_cache()
    await cache.fetch(DIGESTS[1])
    stall(faulty, DIGESTS[:1], Fault(bytes_per_s=300_000))
    started = time.monotonic()
    with pytest.raises(AdapterStillLoading) as loading:
        await cache.fetch(DIGESTS[0], deadline_s=0.5)
    assert time.monotonic() - started < 5
    assert loading.value.code == "adapter_loading"
    assert 0 < loading.value.eta_s < 30
    assert 1 <= loading.value.retry_after_s <= 30
    path = await cache.fetch(DIGESTS[0], deadline_s=30)
    assert (path / WEIGHTS_FILE).stat().st_size == 300_000
    assert sum(key.endswith(WEIGHTS_FILE) and DIGESTS[0] in key for key, *_ in faulty.requests) == 1


async def test_a_download_without_waiting_callers_is_kept_but_not_leased(open_cache, faulty, tmp_path):
    cache = open_cache()
    stall(faulty, DIGESTS[:1], Fault(bytes_per_s=300_000))
    with pytest.raises(AdapterStillLoading):
        await cache.fetch(DIGESTS[0], holder="gone", deadline_s=0.1)
    await asyncio.to_thread(wait_until, (tmp_path / "cache" / DIGESTS[0]).is_dir)
    await asyncio.to_thread(wait_until, lambda: not cache._disk.leases.holders(DIGESTS[0]))
    assert await cache.digests() == {DIGESTS[0]}


async def test_another_tenant_that_wants_the_same_adapter_does_not_wait_in_the_first_tenants_queue(open_cache, faulty):
    cache = open_cache(cache_tenant_downloads_max=1)
    stall(faulty, DIGESTS[:5])
    async with waiting(cache, [*DIGESTS[:5], DIGESTS[10]], "a"):
        await seconds_for(cache, [DIGESTS[10]], "b")


async def test_while_s3_is_down_the_disk_serves_and_few_requests_reach_s3(open_cache, faulty, tmp_path):
    await open_cache().fetch(DIGESTS[0])
    down = faulty.settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    settings = CacheSettings(cache_dir=tmp_path / "cache", cache_free_bytes_min=0, cache_circuit_open_s=30)
    cache = AdapterCache(settings, RevisionStore(Bucket(down, STORE)))
    try:
        for digest in DIGESTS[1:4]:
            with pytest.raises(Unavailable) as failed:
                await cache.fetch(digest)
            assert failed.value.code == "store_unavailable"
        started = time.monotonic()
        for digest in DIGESTS[4:50]:
            with pytest.raises(Unavailable, match="can be served") as failed:
                await cache.fetch(digest, deadline_s=5)
            assert failed.value.code == "store_unavailable"
            assert 1 <= failed.value.retry_after_s <= 30
        assert time.monotonic() - started < 10
        assert (await cache.fetch(DIGESTS[0])).is_dir()
    finally:
        cache.close()


async def test_recovery_of_s3_is_detected_automatically(open_cache, faulty):
    cache = open_cache(cache_circuit_open_s=0.2)
    stall(faulty, DIGESTS[:20], Fault(status=500))
    for number, digest in enumerate(DIGESTS[:6]):
        with pytest.raises(Unavailable):
            await cache.fetch(digest, tenant=f"tenant {number}")
    assert cache._circuit.is_open
    faulty.faults.clear()
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Unavailable):
                await cache.fetch(DIGESTS[0], tenant="a")
                break
            await asyncio.sleep(0.05)
    assert not cache._circuit.is_open
    await cache.fetch(DIGESTS[1], tenant="b")


async def test_the_download_of_a_forgotten_adapter_is_stopped(open_cache, faulty):
    cache = open_cache(cache_tenant_downloads_max=1)
    stall(faulty, DIGESTS[:2], Fault(bytes_per_s=1000))
    async with waiting(cache, DIGESTS[:2], "a") as tasks:
        await asyncio.sleep(0.3)
        for digest in reversed(DIGESTS[:2]):  # the one that waits for its turn, and the one that runs
            assert await asyncio.wait_for(cache.evict(digest, f"a@{digest}"), 10) == frozenset()
        for task in tasks:
            with pytest.raises(Unavailable) as stopped:
                await task
            assert stopped.value.code == "adapter_download_stopped"
    assert await cache.digests() == frozenset()


async def test_closing_does_not_wait_for_a_stalled_download(open_cache, faulty):
    cache = open_cache()
    stall(faulty, DIGESTS[:1], Fault(bytes_per_s=1000))
    async with waiting(cache, DIGESTS[:1], "a"):
        await asyncio.sleep(0.3)
        started = time.monotonic()
        await asyncio.to_thread(cache.close)
        assert time.monotonic() - started < 10


async def test_a_damaged_object_does_not_count_as_a_failure_of_s3(open_cache, faulty):
    cache = open_cache()
    stall(faulty, DIGESTS[:6], Fault(garble=True))
    for number, digest in enumerate(DIGESTS[:6]):
        with pytest.raises(ObjectDamaged):
            await cache.fetch(digest, tenant=f"tenant {number}")
    assert not cache._circuit.is_open
