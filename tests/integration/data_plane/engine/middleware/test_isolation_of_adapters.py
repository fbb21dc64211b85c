"""The middleware while the store hangs, while an adapter is revoked and while a request does not end: other adapters
are served, and a revoked adapter is not loaded again in another way.
"""

import asyncio

import pytest

from adapters.object_store.revision_store import revision_prefix
from core.adapter_names import adapter_of, digest_of
from core.ids import new_id
from data_plane.engine.settings import MiddlewareSettings
from tests.conftest import wait_until
from tests.fixtures.engine.middleware_harness import KEY, MiddlewareHarness, disk_cache
from tests.fixtures.faults.s3 import Fault, faulty_s3
from tests.fixtures.uploads.stored_revisions import make_revision, objects_of

REVISIONS = [make_revision(20_000, seed) for seed in range(12)]


@pytest.fixture
def faulty():
    with faulty_s3() as s3:
        s3.objects = {key: content for revision in REVISIONS for key, content in objects_of(*revision).items()}
        yield s3


@pytest.fixture
def names() -> list[str]:
    return [f"{new_id('ad')}@{manifest.digest}" for manifest, _ in REVISIONS]


@pytest.fixture
async def make_harness(faulty, tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_ENGINE_KEY", KEY)
    made = []

    def make(**settings):
        cache = disk_cache(tmp_path / "cache", faulty.settings)
        chosen = {
            "engine_slots": 1, "engine_memory_adapters": 4, "base_model": "tiny-instruct", "adapter_load_deadline_s": 3,
        }  # fmt: skip
        harness = MiddlewareHarness(MiddlewareSettings(engine_run_dir=tmp_path / "run", **chosen | settings), cache)
        made.append((harness, cache))
        return harness

    yield make
    faulty.silent.set()
    for harness, cache in made:
        await harness.close()
        cache.close()


def stall(faulty, names):
    for name in names:
        for key in [key for key in faulty.objects if key.startswith(revision_prefix(digest_of(name)))]:
            faulty.faults[key] = [Fault(stall_after=-1)]


async def until(condition, what):
    await asyncio.to_thread(wait_until, condition, what=what)


async def test_a_hanging_store_stops_neither_resident_adapters_nor_other_tenants(make_harness, faulty, names):
    harness = make_harness(adapter_loads_max=5, adapter_loads_per_tenant_max=3, adapter_load_deadline_s=4)
    resident, cold, greedy = names[0], names[1], names[2:]
    assert (await harness.chat(resident, x_tenora_tenant="tn_b")).status == 200
    stall(faulty, greedy)
    asking = [asyncio.create_task(harness.chat(name, x_tenora_tenant="tn_a")) for name in greedy[:3]]
    await until(lambda: len({key.split("/")[1] for key, *_ in faulty.requests}) >= 4, "downloads of all three")
    refused = await asyncio.wait_for(harness.chat(greedy[3], x_tenora_tenant="tn_a"), 5)
    assert (refused.status, refused.code) == (503, "adapter_loading")
    for name, tenant in ((resident, "tn_b"), (resident, "tn_a"), (cold, "tn_b")):
        assert (await asyncio.wait_for(harness.chat(name, x_tenora_tenant=tenant), 5)).status == 200
    asking += [asyncio.create_task(harness.chat(name, x_tenora_tenant="tn_c")) for name in greedy[4:6]]
    await asyncio.sleep(0.2)
    full = await asyncio.wait_for(harness.chat(greedy[6], x_tenora_tenant="tn_d"), 5)
    assert (full.status, full.code) == (503, "adapter_loading")
    assert (await asyncio.wait_for(harness.chat(resident, x_tenora_tenant="tn_d"), 5)).status == 200
    assert {answer.code for answer in await asyncio.gather(*asking)} == {"adapter_loading"}
    faulty.faults.clear()
    faulty.silent.set()
    assert (await harness.chat(greedy[3], x_tenora_tenant="tn_a")).status == 200, "every load permit was released"


async def test_an_adapter_without_waiting_requests_is_not_loaded(make_harness, names):
    harness = make_harness(adapter_load_deadline_s=2)
    harness.worker.gate.clear()
    answers = await asyncio.gather(*(harness.chat(name) for name in names[:3]))
    assert {answer.code for answer in answers} == {"adapter_loading"}
    table = harness.worker.table
    await until(lambda: not any(table.wants(name) for name in names[:3]), "the worker to learn that all gave up")
    harness.worker.gate.set()
    assert (await harness.chat_until_loaded(names[3])).status == 200
    assert len(set(harness.worker.loads) - {names[3]}) == 1, "beside it, only the load that had already started"


async def test_prefetches_of_one_tenant_are_limited(make_harness, faulty, names):
    harness = make_harness(adapter_loads_per_tenant_max=1)
    stall(faulty, names[:1])

    async def prefetch(name, tenant):
        return await harness.ask("POST", "/tenora/v1/prefetch", {"name": name, "tier": "memory", "tenant": tenant})

    first = asyncio.create_task(prefetch(names[0], "tn_a"))
    await until(lambda: faulty.requests, "the first download")
    assert (await prefetch(names[1], "tn_a")).code == "adapter_loading"
    assert (await prefetch(names[1], "tn_b")).status == 200
    assert (await first).code == "adapter_loading"


@pytest.mark.parametrize("tier", ["disk", "memory"])
async def test_a_prefetch_does_not_restore_an_adapter_that_is_revoked_meanwhile(
    make_harness, faulty, names, tmp_path, tier
):
    harness, name = make_harness(unload_abort_timeout_s=0.2), names[0]
    stall(faulty, [name])
    prefetch = asyncio.create_task(harness.ask("POST", "/tenora/v1/prefetch", {"name": name, "tier": tier}))
    await until(lambda: faulty.requests, "the download")
    answer = await harness.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 0.1})
    assert (answer.json["drained"], answer.json["aborted"], answer.json["on_disk"]) == (0, 0, [])
    faulty.faults.clear()
    faulty.silent.set()
    assert (await prefetch).status in (404, 503)
    await asyncio.sleep(0.3)
    assert not (tmp_path / "cache" / digest_of(name)).exists()
    assert harness.adapters.disk.names == set()


async def test_an_adapter_that_cannot_be_loaded_because_it_was_revoked_is_not_fetched_again(
    make_harness, faulty, names
):
    harness, name = make_harness(), names[0]
    harness.worker.gate.clear()
    prefetch = asyncio.create_task(harness.ask("POST", "/tenora/v1/prefetch", {"name": name}))
    await until(lambda: len(faulty.requests) >= 3, "the download")
    await asyncio.sleep(0.3)
    await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": [adapter_of(name)]})
    asked = len(faulty.requests)
    harness.worker.gate.set()
    answer = await prefetch
    assert (answer.status, answer.code) == (404, "adapter_revoked")
    assert len(faulty.requests) == asked


async def test_a_revocation_refuses_every_revision_of_its_adapter(make_harness, names):
    harness, name = make_harness(), names[0]
    sister, other = f"{adapter_of(name)}@{digest_of(names[1])}", names[2]
    await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": [adapter_of(name)]})
    for each, status in ((name, 404), (sister, 404), (other, 200)):
        assert (await harness.chat(each)).status == status
    assert harness.worker.table.is_revoked(sister)
    assert not harness.worker.table.is_revoked(other)


async def test_more_revoked_adapters_than_the_limit_are_413_and_the_limit_itself_is_accepted(make_harness):
    harness = make_harness(revoked_adapters_max=20_000)
    adapters = [new_id("ad") for _ in range(20_001)]
    assert (await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": adapters})).status == 413
    assert (await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": adapters[1:]})).json == {"adapters": 20_000}


async def test_a_revocation_that_is_lifted_during_its_drain_aborts_no_request(make_harness, names):
    harness, name = make_harness(), names[0]
    harness.generation.hold = True
    running = asyncio.create_task(harness.chat(name, x_request_id="r1"))
    await harness.generation.until_started(1)
    unloading = asyncio.create_task(harness.ask("POST", "/tenora/v1/unload", {"name": name, "drain_s": 3}))
    await until(lambda: name in harness.adapters.revoked, "the unload to begin")
    await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": []})
    answer = await unloading
    assert (answer.status, answer.code) == (409, "revocation_lifted")
    assert harness.client.aborted == []
    assert name in harness.worker.in_memory
    await harness.client.abort(["chatcmpl-r1"])
    assert (await running).status == 200


@pytest.mark.parametrize("by", ["an unload", "a failure"])
async def test_a_name_keeps_its_number_while_a_request_of_it_will_not_end(make_harness, names, by):
    """Two numbers for one name in one step would crash the engine."""
    harness, name = make_harness(unload_abort_timeout_s=0.2), names[0]
    harness.generation.hold, harness.client.deaf = True, True
    stuck = asyncio.create_task(harness.chat(name, x_request_id="stuck"))
    await harness.generation.until_started(1)
    before = harness.models.lora_requests[name]
    if by == "an unload":
        await harness.ask("POST", "/tenora/v1/unload", {"name": name})
        await harness.ask("PUT", "/tenora/v1/revoked", {"adapters": []})
    else:
        harness.generation.hold, harness.generation.fail = False, True
        assert (await harness.chat(name)).code == "adapter_failed"
        harness.generation.fail = False
        assert (await harness.chat(name)).status == 200, "after the attempt to abort the other requests"
    assert harness.models.lora_requests[name] is before
    assert harness.client.prefix_cache_drops == 1
    harness.client.deaf = False
    await harness.client.abort(["chatcmpl-stuck"])
    await stuck
    harness.generation.hold = False
    assert (await harness.ask("POST", "/tenora/v1/unload", {"name": name})).json["in_memory"] == []
    assert name not in harness.models.lora_requests
