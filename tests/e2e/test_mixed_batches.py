"""On a real engine: in batches that mix the base model with as many adapters as there are slots, and while adapters
come and go under them, every request is answered by its own model and no other.

The engine computes in bfloat16, as in production. A position of an answer that rounding has moved far is compared with
what every model says there, so no CPU's rounding can fail these tests (``isolation_judge`` has the measurements).
"""

import asyncio
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import SLOTS
from tests.fixtures.engine.isolation_judge import Answer, Verdicts
from tests.fixtures.engine.mixed_batches import (
    LONG_TOKENS,
    ROUNDS,
    alternating,
    judge_long,
    mixed_rounds,
    settle_all,
    write_long,
)
from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


@dataclass
class Churned:
    """What was answered while adapters came and went, and how many of them lost their place."""

    rounds: Verdicts
    alternating: Verdicts
    long: dict[str, Answer]
    slot_evictions: int
    memory_evictions: int


@pytest.fixture(scope="module")
def churned(engine, models, references) -> Churned:
    """In each round more adapters than slots, so that some wait for a slot while others run, and over time more than
    the memory holds. Beside them two long answers are written, and two adapters take turns.
    """
    writer, *pair = models[1:4]

    async def all_at_once():
        rounds = asyncio.create_task(
            mixed_rounds(engine, models, references, rounds=ROUNDS, at_once=SLOTS + 2, seed=12, tokens=4)
        )
        beside = alternating(engine, (pair[0], pair[1]), references, beside=rounds)
        long = (write_long(engine, model, tokens=LONG_TOKENS) for model in (BASE, writer))
        return await asyncio.gather(rounds, beside, *long)

    before = engine.table()
    rounds, turns, base, written = asyncio.run(all_at_once())
    after = engine.table()
    asyncio.run(settle_all(engine, models, rounds, turns))
    return Churned(
        rounds, turns, {BASE: base, writer: written},
        slot_evictions=after.slot_evictions - before.slot_evictions,
        memory_evictions=after.memory_evictions - before.memory_evictions,
    )  # fmt: skip


def test_a_batch_of_the_base_and_every_slots_adapter_mixes_no_answers(engine, models, references, capsys):
    chosen = models[: SLOTS + 1]
    verdicts = asyncio.run(
        mixed_rounds(engine, chosen, references, rounds=ROUNDS, at_once=SLOTS + 1, seed=11, tokens=6)
    )
    slots = {slot["name"] for slot in engine.residency()["slots"]}
    assert slots == set(chosen[1:]), "every slot was filled, so a stray index would have shown"
    asyncio.run(settle_all(engine, models, verdicts))
    with capsys.disabled():
        print(f"\n  {ROUNDS} mixed rounds: {verdicts}")
    assert not verdicts.contaminated


def test_adapters_that_come_and_go_under_a_batch_mix_no_answers(churned, capsys):
    with capsys.disabled():
        evictions = f"{churned.slot_evictions} slot and {churned.memory_evictions} memory evictions"
        print(f"\n  {ROUNDS} rounds: {evictions}, {churned.rounds}")
    assert churned.slot_evictions > ROUNDS, "adapters lost their slots in every round"
    assert churned.memory_evictions > ROUNDS, "and were read from the disk again"
    assert not churned.rounds.contaminated


def test_two_adapters_that_alternate_in_a_mixed_batch_mix_no_answers(churned, capsys):
    with capsys.disabled():
        print(f"\n  in turns: {churned.alternating}")
    assert churned.alternating.same + churned.alternating.diverged > ROUNDS / 2
    assert not churned.alternating.contaminated


def test_every_token_of_a_long_answer_is_the_likeliest_of_its_model_alone(engine, models, churned, capsys):
    """Slots changed under it all the while. One wrong step would stay in its KV cache and show in all that follow."""
    assert [len(answer.tokens) for answer in churned.long.values()] == [LONG_TOKENS] * 2
    verdicts = asyncio.run(judge_long(engine, models, churned.long))
    with capsys.disabled():
        print(f"\n  {LONG_TOKENS} tokens each: {verdicts}")
    assert verdicts.same == len(churned.long)
    assert not verdicts.contaminated
    crossed = {model: churned.long[other] for model, other in zip(churned.long, reversed(churned.long), strict=True)}
    exchanged = asyncio.run(judge_long(engine, models, crossed))
    assert {model for model in crossed if any(model in found for found in exchanged.contaminated)} == set(crossed), (
        "another model's answer would have been found"
    )
