"""What an adapter costs on the CPU of a real engine: a bound that noise does not reach and a lost kernel does."""

import asyncio

import pytest

from benchmarks.lora.tax import Shape, measure, ratios

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

EIGHT_AT_ONCE = Shape(
    rounds=3, prompt_tokens=32, output_tokens=16, rank=8, seed=20, counts=(1,), concurrencies=(8,)
)  # fmt: skip
THROUGHPUT_MIN = 0.5  # of the base model's in the same round; vLLM's own operations reach a quarter


def test_eight_requests_of_an_adapter_get_most_of_the_base_models_throughput(engine, models, capsys):
    loads = asyncio.run(measure(engine, [models[2]], EIGHT_AT_ONCE))
    base, adapter = ratios(loads, EIGHT_AT_ONCE)
    with capsys.disabled():
        print(f"\n  base {base['tokens_per_s']} tokens/s; of it an adapter reaches {adapter['throughput_ratios']}")
    assert (base["adapters"], adapter["adapters"]) == (0, 1)
    assert adapter["throughput_ratio"] >= THROUGHPUT_MIN
