"""On a real engine: in batches that mix the base model with as many adapters as there are slots, and while adapters
come and go under them, every request is answered by its own model and no other.
"""

import asyncio
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import SLOTS
from tests.fixtures.engine.mixed_batches import Answer, Verdicts, alternating, judge_long, mixed_rounds, write_long
from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS_MIXED, ROUNDS_CHURNED = 200, 200
LONG_TOKENS = 300


@dataclass
class Churned:
    """What was answered while adapters came and went, and how many of them lost their place."""

    rounds: Verdicts
    alternating: Verdicts
    long: dict[str, Answer]
    slot_evictions: int
    memory_evictions: int


@pytest.fixture(scope="module")
def churned(engine, models, alone) -> Churned:
    """In each round more adapters than slots, so that some wait for a slot while others run, and over time more than
    the memory holds. Beside them two long answers are written, and two adapters take turns.
    """
    writer, *pair = models[1:4]

    async def all_at_once():
        rounds = asyncio.create_task(
            mixed_rounds(engine, models, alone, rounds=ROUNDS_CHURNED, at_once=SLOTS + 2, seed=12, tokens=4)
        )
        beside = alternating(engine, (pair[0], pair[1]), alone, beside=rounds)
        long = (write_long(engine, model, tokens=LONG_TOKENS) for model in (BASE, writer))
        return await asyncio.gather(rounds, beside, *long)

    before = engine.table()
    rounds, turns, base, written = asyncio.run(all_at_once())
    after = engine.table()
    return Churned(
        rounds, turns, {BASE: base, writer: written},
        slot_evictions=after.slot_evictions - before.slot_evictions,
        memory_evictions=after.memory_evictions - before.memory_evictions,
    )  # fmt: skip


def test_a_batch_of_the_base_and_every_slots_adapter_mixes_no_answers(engine, models, alone, capsys):
    chosen = models[: SLOTS + 1]
    verdicts = asyncio.run(
        mixed_rounds(engine, chosen, alone, rounds=ROUNDS_MIXED, at_once=SLOTS + 1, seed=11, tokens=6)
    )
    slots = {slot["name"] for slot in engine.residency()["slots"]}
    assert slots == set(chosen[1:]), "every slot was filled, so a stray index would have shown"
    with capsys.disabled():
        print(f"\n  {ROUNDS_MIXED} mixed rounds: {verdicts}")
    assert not verdicts.foreign


def test_adapters_that_come_and_go_under_a_batch_mix_no_answers(churned, capsys):
    with capsys.disabled():
        evictions = f"{churned.slot_evictions} slot and {churned.memory_evictions} memory evictions"
        print(f"\n  {ROUNDS_CHURNED} rounds: {evictions}, {churned.rounds}")
    assert churned.slot_evictions > ROUNDS_CHURNED, "adapters lost their slots in every round"
    assert churned.memory_evictions > ROUNDS_CHURNED, "and were read from the disk again"
    assert not churned.rounds.foreign


def test_two_adapters_that_take_turns_in_a_mixed_batch_are_each_their_own(churned, capsys):
    with capsys.disabled():
        print(f"\n  in turns: {churned.alternating}")
    assert churned.alternating.same + churned.alternating.turned > ROUNDS_CHURNED / 2
    assert not churned.alternating.foreign


def test_a_long_answer_is_token_by_token_what_its_model_alone_thinks_likeliest(engine, churned, capsys):
    """Slots changed under it all the while. One wrong step would stay in its KV cache and show in all that follow."""
    assert [len(answer.tokens) for answer in churned.long.values()] == [LONG_TOKENS] * 2
    verdicts = asyncio.run(judge_long(engine, churned.long))
    with capsys.disabled():
        print(f"\n  {LONG_TOKENS} tokens each: {verdicts}")
    assert verdicts.same == len(churned.long)
    assert not verdicts.foreign
    crossed = {model: churned.long[other] for model, other in zip(churned.long, reversed(churned.long), strict=True)}
    assert len(asyncio.run(judge_long(engine, crossed)).foreign) == len(crossed), "another model's would have shown"
