"""The meter beside vLLM's own scheduler: after every step its pages are those of vLLM's block tables."""

import random

import pytest

from data_plane.engine.kv_meter import attach
from data_plane.engine.kv_table import KvTableReader
from tests.fixtures.engine.vllm_scheduler import VOCABULARY, SteppedScheduler
from tests.fixtures.late_import import LateModule

sync = LateModule("vllm.v1.core.sched.scheduler")
asynchronous = LateModule("vllm.v1.core.sched.async_scheduler")
BLOCK_TOKENS = 32


@pytest.fixture(params=["sync", "async"])
def measured(request, tmp_path, monkeypatch):
    """A scheduler with too few blocks for its requests, and a reader of its table."""
    monkeypatch.setenv("TENORA_ENGINE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TENORA_REPLICA_ID", "rep_one")
    folder = tmp_path / "rep_one"
    folder.mkdir()
    base = sync.Scheduler if request.param == "sync" else asynchronous.AsyncScheduler
    kind = type("Measured", (base,), {})
    attach(kind)
    return SteppedScheduler(folder, kind, blocks=24, block_tokens=BLOCK_TOKENS, sequences=8), KvTableReader(folder)


def test_its_pages_are_those_of_the_block_tables_through_preemptions_and_aborts(measured):
    stepped, reader = measured
    scheduler, choose, preemptions, in_flight = stepped.scheduler, random.Random(5), 0, []
    shared = [choose.randrange(VOCABULARY) for _ in range(3 * BLOCK_TOKENS)]
    running = [f"cmpl-req_{number}-0-0a1b2c3d" for number in range(12)]
    for number, name in enumerate(running):
        own = [choose.randrange(VOCABULARY) for _ in range(choose.randrange(10, 150))]
        stepped.add(name, shared + own if number % 3 else own, output_tokens=choose.randrange(1, 200))
    for step in range(4000):
        in_flight.append(stepped.schedule())
        assert scheduler.tenora_kv_meter._total.pages == stepped.blocks_held() * (BLOCK_TOKENS // 16), f"step {step}"
        preemptions += len(in_flight[-1].preempted_req_ids or ())
        if len(in_flight) > choose.randrange(2):  # asynchronous scheduling is a step ahead of the model
            stepped.complete(in_flight.pop(0))
        if step % 50 == 10 and scheduler.requests:
            stepped.abort(choose.choice(list(scheduler.requests)))
        if not scheduler.requests:
            break
    assert not scheduler.requests, "it did not end"
    assert preemptions > 0, "nothing was preempted: this shows little"
    assert scheduler.tenora_kv_meter._total.pages == stepped.blocks_held() == 0
    found = [reader.page_ms(name.rpartition("-")[0]) for name in running]
    assert sum(page_ms or 0 for page_ms in found) == reader.total_page_ms() > 0


def test_a_request_that_waits_in_the_queue_is_not_in_the_table(measured):
    stepped, reader = measured
    for number in range(9):
        stepped.add(f"cmpl-req_{number}-0-0a1b2c3d", [number] * 10, output_tokens=5)
    stepped.schedule()
    assert [reader.page_ms(f"cmpl-req_{number}-0") is not None for number in range(9)] == [True] * 8 + [False]
    stepped.abort("cmpl-req_8-0-0a1b2c3d")
    assert reader.page_ms("cmpl-req_8-0") is None
