"""The replaced LoRA arithmetic equals a float64 reference, and a token without LoRA is touched by nobody's weights."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own imports warn
    from data_plane.engine.cpu_lora import SegmentedPunicaWrapper, group_by_slot

SLOTS, RANK, WIDTH_IN, WIDTHS_OUT = 4, 8, 24, (16, 8, 8)


def wrapper_for(slot_of_token: list[int]) -> SegmentedPunicaWrapper:
    wrapper = SegmentedPunicaWrapper.__new__(SegmentedPunicaWrapper)
    wrapper._groups = tuple(group_by_slot(slot_of_token))
    return wrapper


def reference(y, x, a, b, slot_of_token):
    out = y.double().clone()
    for token, slot in enumerate(slot_of_token):
        if slot < 0:
            continue
        offset = 0
        for a_slice, b_slice, width in zip(a, b, WIDTHS_OUT, strict=True):
            out[token, offset : offset + width] += b_slice[slot, 0].double() @ (
                a_slice[slot, 0].double() @ x[token].double()
            )
            offset += width
    return out


@given(st.lists(st.integers(-1, SLOTS - 1), max_size=60), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_each_token_gets_its_own_adapter_and_no_other(slot_of_token, seed):
    random = torch.Generator().manual_seed(seed)
    tokens = len(slot_of_token)
    x = torch.randn(tokens, WIDTH_IN, generator=random)
    y = torch.randn(tokens, sum(WIDTHS_OUT), generator=random)
    a = tuple(torch.randn(SLOTS, 1, RANK, WIDTH_IN, generator=random) for _ in WIDTHS_OUT)
    b = tuple(torch.randn(SLOTS, 1, width, RANK, generator=random) for width in WIDTHS_OUT)
    expected = reference(y, x, a, b, slot_of_token)
    untouched = y.clone()
    wrapper_for(slot_of_token).add_lora_linear(y, x, a, b, 1.0, WIDTHS_OUT)
    assert torch.allclose(y.double(), expected, atol=1e-3, rtol=1e-4)
    plain = [token for token, slot in enumerate(slot_of_token) if slot < 0]
    assert torch.equal(y[plain], untouched[plain])


@pytest.mark.parametrize("tokens", [1, 1000])
def test_bfloat16_stays_within_its_precision(tokens):
    random = torch.Generator().manual_seed(7)
    slots = [token % (SLOTS + 1) - 1 for token in range(tokens)]
    x = torch.randn(tokens, WIDTH_IN, generator=random).bfloat16()
    y = torch.zeros(tokens, sum(WIDTHS_OUT)).bfloat16()
    a = tuple((0.1 * torch.randn(SLOTS, 1, RANK, WIDTH_IN, generator=random)).bfloat16() for _ in WIDTHS_OUT)
    b = tuple((0.1 * torch.randn(SLOTS, 1, width, RANK, generator=random)).bfloat16() for width in WIDTHS_OUT)
    expected = reference(y, x, a, b, slots)
    wrapper_for(slots).add_lora_linear(y, x, a, b, 1.0, WIDTHS_OUT)
    assert torch.allclose(y.double(), expected, atol=0.02, rtol=0.02)


def test_adjacent_tokens_are_one_view_and_scattered_ones_an_index():
    ((slot, where),) = group_by_slot([-1, 2, 2, 2, -1])
    assert (slot, where) == (2, slice(1, 4))
    ((slot, where),) = group_by_slot([3, -1, 3])
    assert slot == 3
    assert where.tolist() == [0, 2]
    assert group_by_slot([-1, -1]) == []
