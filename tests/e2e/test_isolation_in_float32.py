"""On a real engine that computes in float32: no answer of a mixed batch moves by more than rounding in float32 does.

Rounding is so small there that weights which are wrong by a hundredth show, also where an answer stays nearest to its
own model. Which request gets which slot, and where adapters lie, is the same code as in bfloat16; the native kernel of
bfloat16 has separate, exact tests (tests/unit/data_plane/engine/cpu_lora/test_punica_wrapper.py).
"""

import asyncio

import pytest

from tests.e2e.conftest import ADAPTERS, MEMORY, SLOTS
from tests.fixtures.engine.isolation_judge import SHIFT_MAX_FLOAT32_NATS
from tests.fixtures.engine.mixed_batches import ROUNDS, ask_references, mixed_rounds
from tests.fixtures.engine.real_engine import BASE, real_engine

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


@pytest.fixture(scope="module")
def exact(no_replica, checkpoint, s3_settings, tmp_path_factory):
    work = tmp_path_factory.mktemp("float32")
    argv = ("--dtype", "float32")
    with real_engine(checkpoint, s3_settings, work, slots=SLOTS, memory=MEMORY, argv=argv) as engine:
        yield engine


@pytest.mark.parametrize(
    ("adapters", "at_once"), [(SLOTS, SLOTS + 1), (ADAPTERS, SLOTS + 2)], ids=["every slot", "more than slots"]
)
def test_no_answer_moves_by_more_than_rounding(exact, adapters, at_once, capsys):
    models = [BASE, *(exact.new_adapter(seed, rank=(4, 8, 16)[seed % 3], scale=0.1) for seed in range(adapters))]
    references = asyncio.run(ask_references(exact, models))
    verdicts = asyncio.run(
        mixed_rounds(
            exact, models, references, rounds=ROUNDS // 2, at_once=at_once, seed=21, tokens=6,
            shift_max_nats=SHIFT_MAX_FLOAT32_NATS,
        )
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n  {ROUNDS // 2} rounds of {at_once} over {adapters} adapters in float32: {verdicts}")
    assert verdicts.contaminated == []
    assert verdicts.doubts == []
