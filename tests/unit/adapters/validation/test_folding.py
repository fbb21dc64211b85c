"""Folding leaves the product scaling·B·A of every module unchanged, and adapters without patterns as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.safetensors_header import TensorEntry
from adapters.validation.config_rules import AdapterConfig
from adapters.validation.folding import fold
from adapters.validation.pattern_rules import AlphaRule
from adapters.validation.tensor_rules import LoraPair

NAMES = [f"model.layers.{layer}.self_attn.{kind}_proj" for layer in range(2) for kind in "qkv"]


def pair(module: str, rank: int) -> LoraPair:
    entries = [TensorEntry(name=module, dtype="F32", shape=shape, begin=0, end=0) for shape in ((rank, 6), (5, rank))]
    return LoraPair(module=module, a=entries[0], b=entries[1])


def config(rank: int, alpha: float, *, use_rslora: bool, alphas: dict[str, float]) -> AdapterConfig:
    rules = tuple(AlphaRule(name=name, anchored=True, alpha=value) for name, value in alphas.items())
    return AdapterConfig(
        rank=rank, alpha=alpha, use_rslora=use_rslora, modules=None, ranks=frozenset({rank}), alpha_rules=rules
    )


@given(
    ranks=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    alphas=st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1000)),
    alpha=st.floats(0.01, 1000),
    use_rslora=st.booleans(),
    seed=st.integers(0, 100),
)
def test_the_product_of_every_module_stays_the_same(ranks, alphas, alpha, use_rslora, seed):
    adapter = config(ranks[0], alpha, use_rslora=use_rslora, alphas=alphas)
    folding = fold(adapter, [pair(name, rank) for name, rank in zip(NAMES, ranks, strict=True)])
    served = folding.alpha / (np.sqrt(folding.rank) if folding.use_rslora else folding.rank)
    random = np.random.default_rng(seed)
    for name, rank in zip(NAMES, ranks, strict=True):
        a, b = random.normal(size=(rank, 6)), random.normal(size=(5, rank))
        padding = folding.rank - rank
        wide_a, wide_b = np.pad(a, ((0, padding), (0, 0))), np.pad(b * folding.factor(name), ((0, 0), (0, padding)))
        np.testing.assert_allclose(served * wide_b @ wide_a, adapter.scaling_of(name, rank) * b @ a, rtol=1e-9)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_of_one_rank_and_alpha_keeps_its_numbers(use_rslora):
    folding = fold(config(8, 16, use_rslora=use_rslora, alphas={}), [pair(name, 8) for name in NAMES])
    assert (folding.rank, folding.alpha, folding.use_rslora, folding.factors) == (8, 16, use_rslora, {})


def test_most_modules_are_not_scaled():
    folding = fold(config(8, 16, use_rslora=False, alphas={NAMES[0]: 4}), [pair(name, 8) for name in NAMES])
    assert (folding.alpha, folding.factors) == (16, {NAMES[0]: 0.25})
