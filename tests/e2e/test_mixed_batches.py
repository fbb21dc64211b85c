"""On a real engine: in batches that mix the base model with as many adapters as there are slots, and while adapters
come and go under them, every request is answered by its own model and no other.
"""

import asyncio

import pytest

from tests.fixtures.mixed_batches import Alone, ask_alone, mixed_rounds
from tests.fixtures.real_engine import BASE, RealEngine, real_engine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

SLOTS, MEMORY, ADAPTERS = 8, 10, 20
ROUNDS_MIXED, ROUNDS_CHURNED = 200, 60


@pytest.fixture(scope="module")
def engine(checkpoint, s3_settings, tmp_path_factory):
    with real_engine(checkpoint, s3_settings, tmp_path_factory.mktemp("mixed"), slots=SLOTS, memory=MEMORY) as running:
        yield running


@pytest.fixture(scope="module")
def models(engine: RealEngine) -> list[str]:
    return [BASE, *(engine.new_adapter(seed, rank=(4, 8, 16)[seed % 3], scale=0.1) for seed in range(ADAPTERS))]


@pytest.fixture(scope="module")
def alone(engine: RealEngine, models) -> Alone:
    return asyncio.run(ask_alone(engine, models))


def test_a_batch_of_the_base_and_every_slots_adapter_mixes_no_answers(engine, models, alone, capsys):
    chosen = models[: SLOTS + 1]
    verdicts = asyncio.run(mixed_rounds(engine, chosen, alone, rounds=ROUNDS_MIXED, at_once=SLOTS + 1, seed=11))
    slots = {slot["name"] for slot in engine.residency()["slots"]}
    assert slots == set(chosen[1:]), "every slot was filled, so a stray index would have shown"
    with capsys.disabled():
        print(f"\n  {ROUNDS_MIXED} mixed rounds: {verdicts}")
    assert not verdicts.foreign


def test_adapters_that_come_and_go_under_a_batch_mix_no_answers(engine, models, alone, capsys):
    before = engine.table()
    # More at once than slots, so that some wait for a slot while others run, and more over time than the memory holds,
    # so that adapters are loaded and evicted while the batch decodes.
    verdicts = asyncio.run(mixed_rounds(engine, models, alone, rounds=ROUNDS_CHURNED, at_once=SLOTS + 3, seed=12))
    after = engine.table()
    from_slots = after.slot_evictions - before.slot_evictions
    from_memory = after.memory_evictions - before.memory_evictions
    with capsys.disabled():
        print(f"\n  {ROUNDS_CHURNED} rounds: {from_slots} slot and {from_memory} memory evictions, {verdicts}")
    assert from_slots > ROUNDS_CHURNED, "adapters lost their slots in every round"
    assert from_memory > ROUNDS_CHURNED, "and were read from the disk again"
    assert not verdicts.foreign
