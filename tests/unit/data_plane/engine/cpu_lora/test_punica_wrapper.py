"""The LoRA arithmetic on the CPU equals a float64 reference, and no adapter's weights change a token without LoRA."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.late_import import LateModule

base_linear = LateModule("vllm.lora.layers.base_linear")
column_parallel_linear = LateModule("vllm.lora.layers.column_parallel_linear")
punica_wrapper = LateModule("data_plane.engine.cpu_lora.punica_wrapper")
tables = LateModule("data_plane.engine.cpu_lora.tables")
torch = LateModule("torch")
utils = LateModule("vllm.lora.layers.utils")

SLOTS, RANK_MAX = 4, 16
SHAPES = {"fused": (72, (40, 16, 24)), "single": (48, (300,)), "wide": (600, (1100, 520))}
HALF_ULP = 2.0**-8  # of bfloat16, relative: what one rounding may change, on any CPU


class LoraLayer:
    """The stacked weights of a linear layer, with vLLM's methods to write them."""

    def __init__(self, inputs, widths, dtype=None):
        dtype = dtype or torch.bfloat16
        self.n_slices, self.tp_size, self.output_slices = len(widths), 1, widths
        self.lora_a_stacked = tuple(torch.zeros(SLOTS, 1, RANK_MAX, inputs, dtype=dtype) for _ in widths)
        self.lora_b_stacked = tuple(torch.zeros(SLOTS, 1, width, RANK_MAX, dtype=dtype) for width in widths)

    def reset_lora(self, index):
        base_linear.BaseLinearLayerWithLoRA.reset_lora(self, index)

    def set_lora(self, index, lora_a, lora_b):
        self.n_slices, self.tp_size = len(self.lora_a_stacked), 1
        if self.n_slices == 1:
            base_linear.BaseLinearLayerWithLoRA.set_lora(self, index, lora_a, lora_b)
        else:
            column_parallel_linear.MergedColumnParallelLinearWithLoRA.set_lora(self, index, lora_a, lora_b)

    def put(self, slot, ranks, random):
        """Write an adapter as a step does; rank 0 stands for a module that the adapter does not target."""
        parts = zip(self.lora_a_stacked, self.lora_b_stacked, ranks, strict=True)
        weights = [
            (torch.randn(rank, a.shape[3], generator=random), torch.randn(b.shape[2], rank, generator=random))
            if rank
            else (None, None)
            for a, b, rank in parts
        ]
        a, b = ([pair[side] for pair in weights] for side in (0, 1))
        self.set_lora(slot, *((a[0], b[0]) if len(ranks) == 1 else (a, b)))

    def fill(self, slot, rank, random):
        """Write an adapter in another way than a step does, so that the slot must be measured."""
        self.reset_lora(slot)
        for a, b in zip(self.lora_a_stacked, self.lora_b_stacked, strict=True):
            a[slot, 0, :rank].copy_(0.2 * torch.randn(rank, a.shape[3], generator=random))
            b[slot, 0, :, :rank].copy_(0.2 * torch.randn(b.shape[2], rank, generator=random))


def wrapper_for(*layers):
    wrapper = punica_wrapper.SegmentedPunicaWrapper(2048, 64, "cpu")
    for layer in layers:
        wrapper.register_layer(layer)
    return wrapper


def batch(wrapper, slot_of_token, *, is_prefill=False):
    """Announce a step to the wrapper as vLLM does: adapter ids by token, 0 for none, and the slot of each id."""
    ids = tuple(slot + 1 for slot in slot_of_token)
    wrapper.update_metadata(utils.LoRAMapping(ids, ids, is_prefill), [1, 2, 3, 4], SLOTS, 1000)


def add(wrapper, layer, y, x):
    wrapper.add_lora_linear(y, x, layer.lora_a_stacked, layer.lora_b_stacked, 1.0, layer.output_slices)


def reference(layer, y, x, slot_of_token):
    """In float64, token by token; also a bound on what rounding y once, and h and the sums in float32, may change. The
    order of these sums differs by the CPU's vectors: with AVX512 they changed a fifth of the bound in 3,000 layers.
    """
    out, size = y.double().clone(), y.double().abs().clone()
    for token, slot in enumerate(slot_of_token):
        offset = 0
        for a, b, width in zip(layer.lora_a_stacked, layer.lora_b_stacked, layer.output_slices, strict=True):
            if slot >= 0:
                hidden = a[slot, 0].double() @ x[token].double()
                out[token, offset : offset + width] += b[slot, 0].double() @ hidden
                size[token, offset : offset + width] += b[slot, 0].double().abs() @ hidden.abs()
            offset += width
    return out, size


def random_layer(shape, seed, ranks=(8, 16, 4, 3)):
    random = torch.Generator().manual_seed(seed)
    layer = LoraLayer(*SHAPES[shape])
    wrapper = wrapper_for(layer)
    for slot, rank in enumerate(ranks):
        layer.fill(slot, rank, random)
    return layer, wrapper, random


def check(layer, wrapper, slot_of_token, random, *, is_prefill=False):
    tokens = len(slot_of_token)
    x = torch.randn(tokens, layer.lora_a_stacked[0].shape[3], generator=random).bfloat16()
    y = torch.randn(tokens, sum(layer.output_slices), generator=random).bfloat16()
    untouched = y.clone()
    expected, size = reference(layer, y, x, slot_of_token)
    batch(wrapper, slot_of_token, is_prefill=is_prefill)
    add(wrapper, layer, y, x)
    assert ((y.double() - expected).abs() <= HALF_ULP * expected.abs() + 1e-5 * size).all()
    plain = [token for token, slot in enumerate(slot_of_token) if slot < 0]
    assert torch.equal(y[plain], untouched[plain])


@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=70),
    st.lists(st.integers(1, RANK_MAX), min_size=SLOTS, max_size=SLOTS),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@examples(80, 10)
def test_each_token_gets_its_own_adapter_and_no_other(shape, slot_of_token, ranks, is_prefill, seed):
    layer, wrapper, random = random_layer(shape, seed, ranks)
    check(layer, wrapper, slot_of_token, random, is_prefill=is_prefill)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("tokens", [5, 131])
def test_blocks_of_tokens_and_the_remainder_agree(shape, tokens):
    layer, wrapper, random = random_layer(shape, tokens)
    check(layer, wrapper, [2] * tokens, random)
    check(layer, wrapper, [token % (SLOTS + 1) - 1 for token in range(tokens)], random)


def test_a_batch_without_lora_is_not_changed():
    layer, wrapper, random = random_layer("fused", 1)
    check(layer, wrapper, [-1] * 9, random)


def test_rows_of_wider_tensors_are_read_and_written_in_place():
    layer, wrapper, random = random_layer("fused", 2)
    inputs, widths = SHAPES["fused"]
    x = torch.randn(6, inputs + 8, generator=random).bfloat16()
    y = torch.randn(6, sum(widths) + 8, generator=random).bfloat16()
    beside = y[:, sum(widths) :].clone()
    slots = [0, -1, 1, 1, 3, 0]
    expected, size = reference(layer, y[:, : sum(widths)], x[:, :inputs], slots)
    batch(wrapper, slots)
    add(wrapper, layer, y[:, : sum(widths)], x[:, :inputs])
    assert ((y[:, : sum(widths)].double() - expected).abs() <= HALF_ULP * expected.abs() + 1e-5 * size).all()
    assert torch.equal(y[:, sum(widths) :], beside)


def test_a_slot_that_is_filled_again_or_emptied_is_measured_again():
    layer, wrapper, random = random_layer("single", 3)
    check(layer, wrapper, [0, 1], random)
    layer.fill(0, 2, random)  # smaller than before
    check(layer, wrapper, [0, 1], random)
    layer.fill(0, 16, random)  # larger, with the same ids in the same slots as before
    check(layer, wrapper, [0, 1], random)
    layer.reset_lora(0)
    y = torch.ones(2, 300).bfloat16()
    add(wrapper, layer, y, torch.ones(2, 48).bfloat16())
    assert torch.equal(y[0], torch.ones(300).bfloat16())
    assert not torch.equal(y[1], torch.ones(300).bfloat16())


def test_a_slot_gets_its_ranks_from_the_weights_that_a_step_writes():
    layer, wrapper, random = random_layer("fused", 6)
    for ranks in ((8, 0, 3), (16, 16, 16), (2, 1, 0)):
        layer.put(1, ranks, random)
        check(layer, wrapper, [1, 0, 1, -1], random)
        (kept,) = wrapper._layers.values()
        assert kept.ranks[:, 1].tolist() == [-(-rank // 4) * 4 for rank in ranks]
    single, wrapper, random = random_layer("single", 7)
    single.put(2, (5,), random)
    check(single, wrapper, [2, 2, 3], random)


def test_a_module_that_an_adapter_does_not_target_costs_nothing():
    layer, wrapper, random = random_layer("fused", 4)
    layer.lora_a_stacked[1][2] = 0  # as for an adapter of q and v alone
    layer.lora_b_stacked[1][2] = 0
    check(layer, wrapper, [2, 2, 0, -1], random)
    (kept,) = wrapper._layers.values()
    assert kept.ranks[:, 2].tolist() == [4, 0, 4]
    assert kept.ranks[:, 3].tolist() == [4, 4, 4], "rank 3 is multiplied as 4, not as 16"


def test_one_tenants_infinity_stays_in_its_own_rows():
    layer, wrapper, random = random_layer("fused", 5)
    layer.lora_a_stacked[0][1] = torch.inf
    batch(wrapper, [0, 1, -1, 0])
    y = torch.zeros(4, sum(SHAPES["fused"][1])).bfloat16()
    add(wrapper, layer, y, torch.randn(4, 72, generator=random).bfloat16())
    assert not torch.isfinite(y[1]).all()
    assert torch.isfinite(y[[0, 2, 3]]).all()


@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=30), st.booleans(), st.integers(0, 2**32 - 1))
@examples(30, 8)
def test_other_types_take_the_plain_path_and_agree(slot_of_token, is_prefill, seed):
    random = torch.Generator().manual_seed(seed)
    layer = LoraLayer(*SHAPES["fused"], dtype=torch.float32)
    wrapper = wrapper_for(layer)
    for slot in range(SLOTS):
        layer.fill(slot, 8, random)
    x = torch.randn(len(slot_of_token), 72, generator=random)
    y = torch.randn(len(slot_of_token), 80, generator=random)
    expected, _ = reference(layer, y, x, slot_of_token)
    batch(wrapper, slot_of_token, is_prefill=is_prefill)
    add(wrapper, layer, y, x)
    assert torch.allclose(y.double(), expected, atol=1e-3, rtol=1e-4)


@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=20), st.booleans(), st.integers(0, 2**32 - 1))
@examples(30, 8)
def test_embeddings_and_logits_also_agree(slot_of_token, is_prefill, seed):
    random = torch.Generator().manual_seed(seed)
    wrapper = wrapper_for()
    batch(wrapper, slot_of_token, is_prefill=is_prefill)
    tokens = len(slot_of_token)
    a = torch.randn(SLOTS, 1, 8, 24, generator=random)
    b = torch.randn(SLOTS, 1, 50, 8, generator=random)
    hidden, x, y = (torch.randn(tokens, width, generator=random) for width in (8, 24, 50))
    embedded, logits = y.clone(), y.clone()
    wrapper.add_lora_embedding(embedded, hidden, b)
    wrapper.add_lora_logits(logits, x, a, b, 1.0)
    for token, slot in enumerate(slot_of_token):
        up, down = b[slot, 0].double(), a[slot, 0].double()
        added = (up @ hidden[token].double(), up @ (down @ x[token].double())) if slot >= 0 else (0, 0)
        assert torch.allclose(embedded[token].double(), y[token].double() + added[0], atol=1e-3)
        assert torch.allclose(logits[token].double(), y[token].double() + added[1], atol=1e-3)


def test_shapes_that_do_not_fit_are_refused_rather_than_read_beyond():
    layer, wrapper, _ = random_layer("fused", 6)
    batch(wrapper, [0] * 5)
    with pytest.raises(ValueError, match="5 tokens are mapped"):
        add(wrapper, layer, torch.zeros(4, 80).bfloat16(), torch.zeros(4, 72).bfloat16())


def test_adjacent_tokens_are_one_view_and_scattered_ones_an_index():
    ((slot, where),) = punica_wrapper.group_by_slot([-1, 2, 2, 2, -1])
    assert (slot, where) == (2, slice(1, 4))
    ((slot, where),) = punica_wrapper.group_by_slot([3, -1, 3])
    assert slot == 3
    assert where.tolist() == [0, 2]
    assert punica_wrapper.group_by_slot([-1, -1]) == []


def test_compiled_code_is_cached_by_its_sources():
    from data_plane.engine.cpu_lora import kernel

    signatures = []
    for sources in (1, 2, 1):
        call = np.zeros(kernel._CALL_FIELDS, dtype=np.int64)
        layer, groups = np.zeros(kernel.LAYER_FIELDS, dtype=np.int64), tables.Groups(np.zeros(0, dtype=np.int64))
        call[kernel._LAYER], call[kernel._GROUPS] = layer.ctypes.data, groups.address
        alone, _ = kernel._entries(sources)
        alone.ctypes(call.ctypes.data)
        signatures.append(int(call[kernel._SIGNATURE]))
    assert signatures == [1, 2, 1]


def test_outputs_of_another_type_are_not_written_as_bfloat16():
    layer, wrapper, random = random_layer("fused", 8)
    x, y = torch.randn(2, 72, generator=random).bfloat16(), torch.zeros(2, 80)
    expected, size = reference(layer, y, x, [0, 1])
    batch(wrapper, [0, 1])
    add(wrapper, layer, y, x)
    assert ((y.double() - expected).abs() <= 2 * HALF_ULP * size).all()
