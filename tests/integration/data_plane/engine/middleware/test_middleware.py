"""The door with a real disk cache, a real S3 and the worker's real loader threads: what it lets in, when, and what it
takes out. vLLM's front end and its steps are stand-ins (``tests/fixtures/engine/middleware_harness.py``).
"""

import asyncio
import os
import secrets
import shutil

import pytest

from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from core.ids import new_id
from data_plane.engine.middleware.idle_adapter_sweep import IdleAdapterSweep
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.settings import MiddlewareSettings
from tests.fixtures.engine.middleware_harness import KEY, NOWHERE, MiddlewareHarness, disk_cache
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
async def make_door(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_ENGINE_KEY", KEY)
    made = []

    def make(s3=bucket, **settings):
        cache = disk_cache(tmp_path / "cache", s3)
        chosen = {"engine_slots": 1, "engine_memory_adapters": 2, "base_model": "tiny-instruct"} | settings
        door = MiddlewareHarness(MiddlewareSettings(engine_run_dir=tmp_path / f"run-{len(made)}", **chosen), cache)
        made.append((door, cache))
        return door

    yield make
    for door, cache in made:
        await door.close()
        cache.close()


async def test_an_adapter_is_warm_before_the_engine_hears_of_its_request(make_door, adapters):
    door, name = make_door(), adapters()
    door.worker.gate.clear()
    asking = asyncio.create_task(door.chat(name))
    await asyncio.sleep(0.3)
    assert door.generation.started == []
    door.worker.gate.set()
    assert (await asking).status == 200
    assert door.generation.started == [name]


async def test_requests_at_once_share_one_load(make_door, adapters):
    door, name = make_door(), adapters()
    answers = await asyncio.gather(*(door.chat(name) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert door.worker.loads == [name]


async def test_the_tiers_are_told_apart(make_door, adapters, tmp_path):
    door, name, others = make_door(), adapters(), [adapters(seed) for seed in (1, 2)]

    async def tier():
        return (await door.chat(name, stream=True)).body.split(b'"tier":"')[1].split(b'"')[0].decode()

    told = [await tier(), await tier()]
    await door.chat(others[0])
    told.append(await tier())
    for other in others:
        await door.chat(other)
    told.append(await tier())
    assert told == ["store", "slot", "memory", "disk"]


async def test_a_request_without_the_header_is_warmed_by_its_body(make_door, adapters):
    door, name = make_door(), adapters()
    assert (await door.chat(name, header=False)).status == 200
    assert door.worker.loads == [name]


async def test_an_adapter_that_takes_too_long_is_503_and_serves_the_next_request(make_door, adapters):
    door, name = make_door(adapter_load_deadline_s=0.3), adapters()
    door.worker.gate.clear()
    answer = await door.chat(name)
    assert (answer.status, answer.code) == (503, "adapter_loading")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json["error"]["eta_s"] > 0
    door.worker.gate.set()
    assert (await door.chat_until_loaded(name)).status == 200


async def test_more_adapters_than_memory_holds_wait_and_none_is_read_in_a_step(make_door, adapters):
    door, names = make_door(adapter_load_deadline_s=10), [adapters(seed) for seed in range(6)]
    answers = await asyncio.gather(*(door.chat(name) for name in names * 5))
    assert {answer.status for answer in answers} == {200}
    assert len(door.worker.in_memory) <= 2


async def test_memory_full_of_running_adapters_is_503_for_one_more_and_not_for_those_that_run(make_door, adapters):
    door, names = make_door(adapter_load_deadline_s=0.4), [adapters(seed) for seed in range(3)]
    door.generation.hold = True
    running = [
        asyncio.create_task(door.chat_until_loaded(name, x_request_id=f"r{i}")) for i, name in enumerate(names[:2])
    ]
    await door.generation.until_started(2)
    assert (await door.chat(names[2])).code == "adapter_loading"
    beside = asyncio.create_task(door.chat(names[0], x_request_id="r2"))
    await door.generation.until_started(3)
    await door.client.abort(["chatcmpl-r0", "chatcmpl-r1", "chatcmpl-r2"])
    assert {answer.status for answer in await asyncio.gather(beside, *running)} == {200}
    door.generation.hold = False
    assert (await door.chat_until_loaded(names[2])).status == 200


async def test_too_many_adapters_on_their_way_are_refused_at_once(make_door, adapters):
    door, names = make_door(adapter_loads_max=1), [adapters(seed) for seed in range(2)]
    door.worker.gate.clear()
    first = asyncio.create_task(door.chat(names[0]))
    await asyncio.sleep(0.2)
    assert (await door.chat(names[1])).code == "adapter_loading"
    door.worker.gate.set()
    assert (await first).status == 200


async def test_a_caller_who_gives_up_leaves_its_place_to_others(make_door, adapters):
    door, names = make_door(engine_memory_adapters=1, adapter_load_deadline_s=5), [adapters(seed) for seed in range(2)]
    door.worker.gate.clear()
    gone = asyncio.create_task(door.chat(names[0]))
    await asyncio.sleep(0.3)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    door.worker.gate.set()
    assert (await door.chat(names[1])).status == 200
    assert door.adapters.loader.names == frozenset()


async def test_absent_adapters_are_404_and_a_store_that_is_down_503(make_door, adapters):
    assert (await make_door().chat(f"{new_id('ad')}@{'a' * 64}")).status == 404
    answer = await make_door(s3=NOWHERE).chat(f"{new_id('ad')}@{'b' * 64}")
    assert answer.status == 503
    assert b"127.0.0.1" not in answer.body


async def test_an_adapter_of_another_base_model_is_never_loaded(make_door, adapters):
    door, name = make_door(base_model="other-7b"), adapters()
    assert (await door.chat(name)).code == "adapter_of_other_base_model"
    assert door.worker.loads == []


async def test_an_adapter_that_the_engine_cannot_read_is_503_and_leaves_its_place_to_others(make_door, adapters):
    door, names = make_door(engine_memory_adapters=1), [adapters(seed) for seed in range(2)]
    door.worker.unreadable.add(names[0])
    answer = await door.chat(names[0])
    assert (answer.status, answer.code) == (503, "adapter_unusable")
    assert b"target modules" not in answer.body, "what vLLM says may name paths; it is in the log"
    assert door.worker.loads == [names[0]] * 2, "once more after every byte was looked at"
    assert (await door.chat(names[1])).status == 200


async def test_files_damaged_without_a_trace_are_mended_on_the_way_in(make_door, adapters, tmp_path):
    door, name, others = make_door(), adapters(), [adapters(seed) for seed in (1, 2)]
    for each in (name, *others):
        await door.chat(each)
    weights = tmp_path / "cache" / name.rpartition("@")[2] / "adapter_model.safetensors"
    status = weights.stat()
    with weights.open("r+b") as file:
        file.seek(50_000)
        file.write(b"damage")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # nobody can see it without reading
    assert (await door.chat(name)).status == 200
    shutil.rmtree(tmp_path / "cache")
    for each in (others[0], name, others[1]):
        assert (await door.chat(each)).status == 200


async def test_an_unload_waits_for_requests_refuses_new_ones_and_leaves_nothing(make_door, adapters, tmp_path):
    door, name = make_door(), adapters()
    door.generation.hold = True
    running = asyncio.create_task(door.chat(name, x_request_id="r1"))
    await door.generation.until_started(1)
    unloading = asyncio.create_task(door.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 20}))
    await asyncio.sleep(0.1)
    assert (await door.chat(name)).code == "adapter_revoked"
    assert not unloading.done()
    await door.client.abort(["chatcmpl-r1"])
    assert (await running).status == 200
    gone = {"drained": 1, "aborted": 0, "in_slots": [], "in_memory": [], "on_disk": [], "holders": []}
    assert (await unloading).json == gone
    assert not (tmp_path / "cache" / name.rpartition("@")[2]).exists()
    again = await door.ask("POST", "/tenora/v1/unload", {"name": name})
    assert again.json == gone | {"drained": 0}
    assert name not in door.models.lora_requests


async def test_requests_that_outlast_the_drain_are_ended(make_door, adapters):
    door, name = make_door(), adapters()
    door.generation.hold = True
    running = asyncio.create_task(door.chat(name, x_request_id="r1"))
    await door.generation.until_started(1)
    answer = await door.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 0.05})
    assert (answer.json["drained"], answer.json["aborted"]) == (0, 1)
    assert door.client.aborted == ["chatcmpl-r1"]
    assert (await running).status == 200


async def test_an_adapter_revoked_while_it_is_loaded_never_reaches_the_engine(make_door, adapters):
    door, name = make_door(), adapters()
    door.worker.gate.clear()
    asking = asyncio.create_task(door.chat(name))
    await asyncio.sleep(0.3)
    await door.ask("PUT", "/tenora/v1/revoked", {"adapters": [name.partition("@")[0]]})
    door.worker.gate.set()
    answer = await asking
    assert answer.status in (404, 503)
    assert door.generation.started == []
    await door.ask("PUT", "/tenora/v1/revoked", {"adapters": []})
    assert (await door.chat(name)).status == 200


async def test_another_name_for_the_same_bytes_keeps_the_files_of_a_revoked_one(make_door, adapters, tmp_path):
    door, name = make_door(), adapters()
    other = f"{new_id('ad')}@{name.rpartition('@')[2]}"
    await door.chat(name)
    await door.chat(other)
    answer = await door.ask("POST", "/tenora/v1/unload", {"name": name})
    assert answer.json["on_disk"] == [], "the other name's right to them is not this one's"
    assert answer.json["holders"] == [other]
    assert (tmp_path / "cache" / name.rpartition("@")[2]).exists()
    assert (await door.chat(other)).status == 200


async def test_an_adapter_that_failed_in_a_step_is_taken_out_and_served_afresh(make_door, adapters):
    door, name = make_door(), adapters()
    door.generation.fail = True
    answer = await door.chat(name, stream=True)
    assert (answer.status, answer.code) == (503, "adapter_failed")
    door.generation.fail = False
    assert (await door.chat(name, stream=True)).status == 200
    assert door.client.prefix_cache_drops == 1
    assert door.worker.loads == [name, name]


async def test_prefetching_brings_an_adapter_as_far_up_as_was_asked_for(make_door, adapters):
    door, name = make_door(), adapters()
    told = [
        (await door.ask("POST", "/tenora/v1/prefetch", {"name": name, "tier": tier})).json["tier"]
        for tier in ("disk", "disk", "memory", "memory")
    ]
    assert told[:3] == ["store", "disk", "disk"]
    assert told[3] in ("memory", "slot")
    assert (await door.chat(name)).json == {}


async def test_what_is_in_no_tier_is_forgotten_and_what_is_used_is_not(make_door, adapters):
    door, names = make_door(), [adapters(seed) for seed in range(4)]
    for name in names:
        await door.chat(name)
    forgotten = IdleAdapterSweep(door.adapters, VllmFrontend(door.app.state)).run_once()
    assert forgotten == set(names[:2])
    assert set(door.models.lora_requests) == set(door.models.lora_resolver_lock) == set(names[2:])
    assert set(door.adapters.disk.names) == set(names[2:])


async def test_a_worker_that_is_gone_is_503_and_is_found_again(make_door, adapters):
    door, name = make_door(), adapters()
    socket = door.settings.run_dir / "worker.sock"
    socket.rename(socket.with_suffix(".away"))
    assert (await door.chat(name)).code == "engine_worker_unreachable"
    socket.with_suffix(".away").rename(socket)
    assert (await door.chat(name)).status == 200


async def test_a_line_that_breaks_leaks_no_hold(make_door, adapters):
    door, names = make_door(engine_memory_adapters=1), [adapters(seed) for seed in range(2)]
    door.generation.hold = True
    running = asyncio.create_task(door.chat(names[0], x_request_id="r0"))
    await door.generation.until_started(1)
    await door.adapters.worker.close()
    await door.client.abort(["chatcmpl-r0"])
    assert (await running).status == 200  # its release could not be sent
    door.generation.hold = False
    assert (await door.chat(names[1])).status == 200
    assert door.worker.table.victim([*names], frozenset(), must=False) in names
    assert door.worker.table.victim([names[0]], frozenset(), must=False) == names[0]
