"""Measures the time to fetch an adapter from S3 to a replica's disk: by size, with one GET and with ranges, and while
another tenant's fifty fetches are stalled.

The first part uses a real S3 server, the second a server that stalls on purpose.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from adapters.cache.adapter_cache import AdapterCache
from adapters.object_store.revision_store import RevisionStore, revision_prefix
from adapters.object_store.s3 import Bucket
from adapters.settings import CacheSettings, StoreSettings
from benchmarks.lora.store import embedded_s3
from core.settings import S3Settings
from tests.fixtures.faults.s3 import Fault, faulty_s3
from tests.fixtures.uploads.stored_revisions import make_revision, objects_of

MIB = 1 << 20


@contextmanager
def opened(s3: S3Settings, folder: Path, store: StoreSettings) -> Iterator[AdapterCache]:
    """An adapter cache in ``folder``, closed at the end of the block."""
    cache = AdapterCache(CacheSettings(cache_dir=folder, cache_free_bytes_min=0), RevisionStore(Bucket(s3, store)))
    try:
        yield cache
    finally:
        cache.close()


async def timed_ms(cache: AdapterCache, digest: str, tenant: str) -> float:
    """The duration of one fetch in milliseconds."""
    started = time.perf_counter()
    await cache.fetch(digest, holder=f"{tenant}@{digest}", tenant=tenant)
    return 1000 * (time.perf_counter() - started)


async def by_size(s3: S3Settings, folder: Path, sizes_mib: list[int], repeats: int) -> list[dict[str, object]]:
    """Medians for each size. One GET and ranges alternate, so that a slow minute affects both."""
    ways = {"one GET": StoreSettings(store_part_bytes=1 << 40), "ranges": StoreSettings()}
    Bucket(s3, StoreSettings()).ensure()
    rows: list[dict[str, object]] = []
    for size_mib in sizes_mib:
        manifest, files = make_revision(size_mib * MIB, size_mib)
        client = Bucket(s3, StoreSettings()).client
        for key, content in objects_of(manifest, files).items():
            client.put_object(Bucket=s3.s3_bucket, Key=key, Body=content)
        took: dict[str, list[float]] = {way: [] for way in ways}
        again: list[float] = []
        for _ in range(repeats):
            for way, store in ways.items():
                with opened(s3, folder, store) as cache:
                    took[way].append(await timed_ms(cache, manifest.digest, "t"))
                    again.append(await timed_ms(cache, manifest.digest, "t"))
                    await cache.evict(manifest.digest, f"t@{manifest.digest}")
        rows += [
            {
                "size_mib": size_mib,
                "way": way,
                "ms_p50": round(statistics.median(each), 1),
                "ms_max": round(max(each), 1),
            }
            for way, each in took.items()
        ]
        rows.append({"size_mib": size_mib, "way": "disk", "ms_p50": round(statistics.median(again), 2)})
    return rows


async def beside_a_stall(folder: Path, fetches: int, stalled: int) -> list[dict[str, object]]:
    """Tenant b's fetches of 1 MiB adapters, alone and while tenant a waits for adapters that send no byte."""
    revisions = [make_revision(MIB, seed) for seed in range(2 * fetches + stalled)]
    digests = [manifest.digest for manifest, _ in revisions]
    rows: list[dict[str, object]] = []
    with faulty_s3() as s3:
        s3.objects = {key: content for revision in revisions for key, content in objects_of(*revision).items()}
        for key in s3.objects:
            if any(key.startswith(revision_prefix(digest)) for digest in digests[2 * fetches :]):
                s3.faults[key] = [Fault(stall_after=-1)]
        with opened(s3.settings, folder, StoreSettings(store_stall_timeout_s=60)) as cache:
            alone = [await timed_ms(cache, digest, "b") for digest in digests[:fetches]]
            waiting = [asyncio.create_task(timed_ms(cache, digest, "a")) for digest in digests[2 * fetches :]]
            await asyncio.sleep(0.1)
            beside = [await timed_ms(cache, digest, "b") for digest in digests[fetches : 2 * fetches]]
            still = sum(not task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            s3.silent.set()
    for what, each in (("alone", alone), (f"beside {still} stalled of a", beside)):
        p99 = statistics.quantiles(each, n=100, method="inclusive")[98]
        rows.append({"tenant b": what, "ms_p50": round(statistics.median(each), 1), "ms_p99": round(p99, 1)})
    return rows


@click.command(help=__doc__)
@click.option("--sizes-mib", default="10,100", show_default=True, help="Adapter sizes, separated by commas.")
@click.option("--repeats", default=5, show_default=True, help="Fetches of each size and way.")
@click.option("--fetches", default=100, show_default=True, help="Fetches of tenant b, alone and beside the stall.")
@click.option("--stalled", default=50, show_default=True, help="Adapters of tenant a that stall.")
def main(sizes_mib: str, repeats: int, fetches: int, stalled: int) -> None:
    """Print one JSON object per line."""
    with tempfile.TemporaryDirectory() as folder, embedded_s3(Path(folder)) as s3:
        sizes = [int(size) for size in sizes_mib.split(",")]
        for row in asyncio.run(by_size(s3, Path(folder) / "cache", sizes, repeats)):
            click.echo(json.dumps(row))
        for row in asyncio.run(beside_a_stall(Path(folder) / "stall", fetches, stalled)):
            click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
