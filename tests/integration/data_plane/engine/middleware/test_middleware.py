"""The middleware with a real disk cache, a real S3 and the worker's real loader threads: which requests it passes on,
when, and what it unloads. vLLM's front end and its steps are stand-ins
(``tests/fixtures/engine/middleware_harness.py``).
"""

import asyncio
import os
import secrets
import shutil
import threading

import pytest

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from core.ids import new_id
from data_plane.engine.middleware.idle_adapter_sweep import IdleAdapterSweep
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.settings import MiddlewareSettings
from tests.fixtures.engine.middleware_harness import KEY, UNREACHABLE_S3, MiddlewareHarness, disk_cache
from tests.fixtures.uploads.stored_revisions import make_revision


@pytest.fixture
def bucket(s3_settings):
    return s3_settings.model_copy(update={"s3_bucket": f"test-{secrets.token_hex(6)}"})


@pytest.fixture
def adapters(bucket, tmp_path):
    """Store a revision; returns an engine name for it."""
    store = RevisionStore(Bucket(bucket, StoreSettings()))
    store.bucket.ensure()

    def put(seed: int = 0) -> str:
        manifest, files = make_revision(100_000, seed)
        folder = tmp_path / f"revision-{seed}"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return f"{new_id('ad')}@{store.put_revision(folder, manifest)}"

    return put


@pytest.fixture
async def make_harness(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_ENGINE_KEY", KEY)
    made = []

    def make(s3=bucket, **settings):
        cache = disk_cache(tmp_path / "cache", s3)
        chosen = {"engine_slots": 1, "engine_memory_adapters": 2, "base_model": "tiny-instruct"} | settings
        harness = MiddlewareHarness(MiddlewareSettings(engine_run_dir=tmp_path / f"run-{len(made)}", **chosen), cache)
        made.append((harness, cache))
        return harness

    yield make
    for harness, cache in made:
        await harness.close()
        cache.close()


async def test_an_adapter_is_in_memory_before_the_engine_gets_its_request(make_harness, adapters):
    harness, name = make_harness(), adapters()
    harness.worker.gate.clear()
    asking = asyncio.create_task(harness.chat(name))
    await asyncio.sleep(0.3)
    assert harness.generation.started == []
    harness.worker.gate.set()
    assert (await asking).status == 200
    assert harness.generation.started == [name]


async def test_requests_at_once_share_one_load(make_harness, adapters):
    harness, name = make_harness(), adapters()
    answers = await asyncio.gather(*(harness.chat(name) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert harness.worker.loads == [name]


async def test_the_report_names_the_tier(make_harness, adapters, tmp_path):
    harness, name, others = make_harness(), adapters(), [adapters(seed) for seed in (1, 2)]

    async def tier():
        return (await harness.chat(name, stream=True)).body.split(b'"tier":"')[1].split(b'"')[0].decode()

    tiers = [await tier(), await tier()]
    await harness.chat(others[0])
    tiers.append(await tier())
    for other in others:
        await harness.chat(other)
    tiers.append(await tier())
    assert tiers == ["store", "slot", "memory", "disk"]


async def test_only_the_request_that_begins_a_download_reports_the_store(make_harness, adapters, monkeypatch):
    """Tenants pay for cold loads by this report, and none that a prefetch began."""
    harness, name, asked, gate = make_harness(), adapters(), threading.Event(), threading.Event()
    download = RevisionStore.download_manifest

    def held_back(*arguments):
        asked.set()
        assert gate.wait(20)
        return download(*arguments)

    monkeypatch.setattr(RevisionStore, "download_manifest", held_back)
    prefetch = asyncio.create_task(harness.ask("POST", "/tenora/v1/prefetch", {"name": name, "tier": "disk"}))
    assert await asyncio.to_thread(asked.wait, 20)
    asking = asyncio.create_task(harness.chat(name, stream=True))
    flights = harness.adapters.disk._cache._flights
    async with asyncio.timeout(20):
        while sum(flight.waiters.total() for flight in flights.values()) < 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    gate.set()
    assert (await prefetch).json["tier"] == "store"
    assert b'"tier":"disk"' in (await asking).body


async def test_a_request_without_the_header_gets_its_adapter_from_its_body(make_harness, adapters):
    harness, name = make_harness(), adapters()
    assert (await harness.chat(name, header=False)).status == 200
    assert harness.worker.loads == [name]


async def test_an_adapter_that_takes_too_long_is_503_and_serves_the_next_request(make_harness, adapters):
    harness, name = make_harness(adapter_load_deadline_s=0.3), adapters()
    harness.worker.gate.clear()
    answer = await harness.chat(name)
    assert (answer.status, answer.code) == (503, "adapter_loading")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json["error"]["eta_s"] > 0
    harness.worker.gate.set()
    assert (await harness.chat_until_loaded(name)).status == 200


async def test_more_adapters_than_memory_holds_wait_and_none_is_read_in_a_step(make_harness, adapters):
    harness, names = make_harness(adapter_load_deadline_s=10), [adapters(seed) for seed in range(6)]
    answers = await asyncio.gather(*(harness.chat(name) for name in names * 5))
    assert {answer.status for answer in answers} == {200}
    assert len(harness.worker.in_memory) <= 2


async def test_memory_full_of_running_adapters_is_503_for_one_more_and_not_for_those_that_run(make_harness, adapters):
    harness, names = make_harness(adapter_load_deadline_s=0.4), [adapters(seed) for seed in range(3)]
    harness.generation.hold = True
    running = [
        asyncio.create_task(harness.chat_until_loaded(name, x_request_id=f"r{i}")) for i, name in enumerate(names[:2])
    ]
    await harness.generation.until_started(2)
    assert (await harness.chat(names[2])).code == "adapter_loading"
    beside = asyncio.create_task(harness.chat(names[0], x_request_id="r2"))
    await harness.generation.until_started(3)
    await harness.client.abort(["chatcmpl-r0", "chatcmpl-r1", "chatcmpl-r2"])
    assert {answer.status for answer in await asyncio.gather(beside, *running)} == {200}
    harness.generation.hold = False
    assert (await harness.chat_until_loaded(names[2])).status == 200


async def test_a_caller_that_disconnects_frees_its_share_of_memory(make_harness, adapters):
    harness, names = (
        make_harness(engine_memory_adapters=1, adapter_load_deadline_s=5),
        [adapters(seed) for seed in range(2)],
    )
    harness.worker.gate.clear()
    gone = asyncio.create_task(harness.chat(names[0]))
    await asyncio.sleep(0.3)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    harness.worker.gate.set()
    assert (await harness.chat(names[1])).status == 200
    assert harness.adapters.loader.names == frozenset()


async def test_absent_adapters_are_404_and_a_store_that_is_down_503(make_harness, adapters):
    assert (await make_harness().chat(f"{new_id('ad')}@{'a' * 64}")).status == 404
    answer = await make_harness(s3=UNREACHABLE_S3).chat(f"{new_id('ad')}@{'b' * 64}")
    assert answer.status == 503
    assert b"127.0.0.1" not in answer.body


async def test_an_adapter_of_another_base_model_is_never_loaded(make_harness, adapters):
    harness, name = make_harness(base_model="other-7b"), adapters()
    assert (await harness.chat(name)).code == "adapter_of_other_base_model"
    assert harness.worker.loads == []


async def test_an_adapter_that_the_engine_cannot_read_is_503_and_frees_its_share_of_memory(make_harness, adapters):
    harness, names = make_harness(engine_memory_adapters=1), [adapters(seed) for seed in range(2)]
    harness.worker.unreadable.add(names[0])
    answer = await harness.chat(names[0])
    assert (answer.status, answer.code) == (503, "adapter_unusable")
    assert b"target modules" not in answer.body, "vLLM's message may name paths; it is in the log"
    assert harness.worker.loads == [names[0]] * 2, "once more after every byte was verified"
    assert (await harness.chat(names[1])).status == 200


async def test_files_damaged_without_a_trace_are_repaired_before_the_load(make_harness, adapters, tmp_path):
    harness, name, others = make_harness(), adapters(), [adapters(seed) for seed in (1, 2)]
    for each in (name, *others):
        await harness.chat(each)
    weights = tmp_path / "cache" / name.rpartition("@")[2] / "adapter_model.safetensors"
    status = weights.stat()
    with weights.open("r+b") as file:
        file.seek(50_000)
        file.write(b"damage")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # only reading the file shows the damage
    assert (await harness.chat(name)).status == 200
    shutil.rmtree(tmp_path / "cache")
    for each in (others[0], name, others[1]):
        assert (await harness.chat(each)).status == 200


async def test_an_unload_waits_for_requests_refuses_new_ones_and_leaves_nothing(make_harness, adapters, tmp_path):
    harness, name = make_harness(), adapters()
    harness.generation.hold = True
    running = asyncio.create_task(harness.chat(name, x_request_id="r1"))
    await harness.generation.until_started(1)
    unloading = asyncio.create_task(harness.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 20}))
    await asyncio.sleep(0.1)
    assert (await harness.chat(name)).code == "adapter_revoked"
    assert not unloading.done()
    await harness.client.abort(["chatcmpl-r1"])
    assert (await running).status == 200
    gone = {"drained": 1, "aborted": 0, "in_slots": [], "in_memory": [], "on_disk": [], "holders": []}
    assert (await unloading).json == gone
    assert not (tmp_path / "cache" / name.rpartition("@")[2]).exists()
    again = await harness.ask("POST", "/tenora/v1/unload", {"name": name})
    assert again.json == gone | {"drained": 0}
    assert name not in harness.models.lora_requests


async def test_requests_that_outlast_the_drain_are_aborted(make_harness, adapters):
    harness, name = make_harness(), adapters()
    harness.generation.hold = True
    running = asyncio.create_task(harness.chat(name, x_request_id="r1"))
    await harness.generation.until_started(1)
    answer = await harness.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 0.05})
    assert (answer.json["drained"], answer.json["aborted"]) == (0, 1)
    assert harness.client.aborted == ["chatcmpl-r1"]
    assert (await running).status == 200


async def test_the_engine_says_why_it_cannot_read_the_object_store(make_harness, adapters):
    adapters()
    assert (await make_harness().ask("GET", "/tenora/v1/store")).json == {"unreadable": None}
    unreachable = await make_harness(UNREACHABLE_S3).ask("GET", "/tenora/v1/store")
    assert "cannot be reached" in unreachable.json["unreadable"]


async def test_an_adapter_revoked_while_it_is_loaded_never_reaches_the_engine(make_harness, adapters):
    harness, name = make_harness(), adapters()
    harness.worker.gate.clear()
    asking = asyncio.create_task(harness.chat(name))
    await asyncio.sleep(0.3)
    await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": [name.partition("@")[0]]})
    harness.worker.gate.set()
    answer = await asking
    assert answer.status in (404, 503)
    assert harness.generation.started == []
    await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": []})
    assert (await harness.chat(name)).status == 200


async def test_another_name_for_the_same_bytes_keeps_the_files_of_a_revoked_one(make_harness, adapters, tmp_path):
    harness, name = make_harness(), adapters()
    other = f"{new_id('ad')}@{name.rpartition('@')[2]}"
    await harness.chat(name)
    await harness.chat(other)
    answer = await harness.ask("POST", "/tenora/v1/unload", {"name": name})
    assert answer.json["on_disk"] == [], "the other name leases them, not this one"
    assert answer.json["holders"] == [other]
    assert (tmp_path / "cache" / name.rpartition("@")[2]).exists()
    assert (await harness.chat(other)).status == 200


async def test_an_adapter_that_failed_in_a_step_is_evicted_and_loaded_again(make_harness, adapters):
    harness, name = make_harness(), adapters()
    harness.generation.fail = True
    answer = await harness.chat(name, stream=True)
    assert (answer.status, answer.code) == (503, "adapter_failed")
    harness.generation.fail = False
    assert (await harness.chat(name, stream=True)).status == 200
    assert harness.client.prefix_cache_drops == 1
    assert harness.worker.loads == [name, name]


async def test_a_prefetch_loads_an_adapter_up_to_the_requested_tier(make_harness, adapters):
    harness, name = make_harness(), adapters()
    tiers = [
        (await harness.ask("POST", "/tenora/v1/prefetch", {"name": name, "tier": tier})).json["tier"]
        for tier in ("disk", "disk", "memory", "memory")
    ]
    assert tiers[:3] == ["store", "disk", "disk"]
    assert tiers[3] in ("memory", "slot")
    assert (await harness.chat(name)).json == {}


async def test_the_sweep_drops_idle_adapters_and_keeps_used_ones(make_harness, adapters):
    harness, names = make_harness(), [adapters(seed) for seed in range(4)]
    for name in names:
        await harness.chat(name)
    dropped = IdleAdapterSweep(harness.adapters, VllmFrontend(harness.app.state)).run_once()
    assert dropped == set(names[:2])
    assert set(harness.models.lora_requests) == set(harness.models.lora_resolver_lock) == set(names[2:])
    assert set(harness.adapters.disk.names) == set(names[2:])


async def test_an_unreachable_worker_is_503_and_is_found_again(make_harness, adapters):
    harness, name = make_harness(), adapters()
    socket = harness.settings.run_dir / "worker.sock"
    socket.rename(socket.with_suffix(".away"))
    assert (await harness.chat(name)).code == "engine_worker_unreachable"
    socket.with_suffix(".away").rename(socket)
    assert (await harness.chat(name)).status == 200


async def test_a_broken_connection_leaks_no_acquired_adapter(make_harness, adapters):
    harness, names = make_harness(engine_memory_adapters=1), [adapters(seed) for seed in range(2)]
    harness.generation.hold = True
    running = asyncio.create_task(harness.chat(names[0], x_request_id="r0"))
    await harness.generation.until_started(1)
    await harness.adapters.worker.close()
    await harness.client.abort(["chatcmpl-r0"])
    assert (await running).status == 200  # its release could not be sent
    harness.generation.hold = False
    assert (await harness.chat(names[1])).status == 200
    assert harness.worker.table.victim([*names], frozenset(), must=False) in names
    assert harness.worker.table.victim([names[0]], frozenset(), must=False) == names[0]
