"""LoRA arithmetic for vLLM's CPU backend that isolates tenants: tokens are grouped by adapter once per step, and each
group is multiplied by its own adapter's weights, which are read in place.

vLLM's own operations (0.32, ``vllm/lora/ops/torch_ops/lora_ops.py``) gather a copy of the adapter's weights for each
token and index it with -1 for tokens without LoRA, which selects the *last* slot: when all slots are filled, a request
without an adapter is answered by another tenant's adapter (vLLM pull requests 48421 and 49656). Here a token with -1 is
in no group. Linear layers in bfloat16 run in ``kernel``; all other operations and types run in plain PyTorch, group by
group.
"""

from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

from data_plane.engine.cpu_lora.tables import Groups, Layer, is_supported, to_rank_major

Group = tuple[int, slice | torch.Tensor]


def group_by_slot(slot_of_token: list[int]) -> list[Group]:
    """(slot, tokens) for each slot >= 0: a slice when the tokens are adjacent, an index tensor otherwise."""
    tokens_of_slot: dict[int, list[int]] = {}
    for token, slot in enumerate(slot_of_token):
        if slot >= 0:
            tokens_of_slot.setdefault(slot, []).append(token)
    groups: list[Group] = []
    for slot, tokens in tokens_of_slot.items():
        first, last = tokens[0], tokens[-1]
        adjacent = last - first + 1 == len(tokens)
        groups.append((slot, slice(first, last + 1) if adjacent else torch.tensor(tokens)))
    return groups


def add_grouped(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, groups: list[Group], scale: float) -> None:
    """``y[tokens] += x[tokens] @ weights[slot].T * scale`` for each group; weights are (slots, 1, out, in)."""
    for slot, tokens in groups:
        weight = weights[slot].reshape(weights.shape[-2:])
        y[tokens] += (x[tokens].to(weight.dtype) @ weight.t() * scale).to(y.dtype)


class SegmentedPunicaWrapper(PunicaWrapperCPU):  # type: ignore[misc] # vLLM ships no types
    """vLLM's CPU wrapper with all of its LoRA arithmetic replaced."""

    def __init__(self, max_num_batched_tokens: int, max_batches: int, device: Any, **kwargs: Any) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device, **kwargs)
        # Late import: a worker of vLLM 0.32 inspects every loaded module at its start and fails on numba's.
        from data_plane.engine.cpu_lora.kernel import Kernel

        self._kernel = Kernel(torch.get_num_threads())
        self._groups: Groups | None = None
        self._layers: dict[int, Layer] = {}
        self._unmeasured: set[tuple[Layer, int]] = set()

    def register_layer(self, layer: BaseLinearLayerWithLoRA) -> None:
        """Make the kernel multiply this layer's weights, and track every change of its slots.

        vLLM calls ``reset_lora`` before it writes to a slot and when it empties one. The shape of the weights that
        ``set_lora`` writes gives their ranks. A slot that was emptied, or filled in another way, is measured before its
        next multiplication.
        """
        if not is_supported(layer.lora_a_stacked):
            return
        layer.lora_b_stacked = tuple(to_rank_major(b) for b in layer.lora_b_stacked)
        kept = self._layers[id(layer.lora_a_stacked)] = Layer(layer.lora_a_stacked, layer.lora_b_stacked)
        reset, fill = layer.reset_lora, layer.set_lora

        def reset_lora(index: int) -> None:
            self._unmeasured.add((kept, index))
            reset(index)

        def set_lora(index: int, lora_a: Any, lora_b: Any) -> None:
            fill(index, lora_a, lora_b)
            if kept.record_ranks(index, lora_a if isinstance(lora_a, list) else [lora_a]):
                self._unmeasured.discard((kept, index))

        layer.reset_lora, layer.set_lora = reset_lora, set_lora

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """VLLM calls this before a step whose tokens or slots differ from the previous step's."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        groups = Groups(self.token_lora_indices.numpy())
        self._groups = groups if len(groups.order) else None

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """``y[tokens, slice] += x[tokens] @ A[slot].T @ B[slot].T * scale`` for each group and each output slice.

        Shapes: x (tokens, in), y (tokens, out), A (slots, 1, rank, in), B (slots, 1, out of the slice, rank).
        """
        groups = self._groups
        if groups is None:
            return
        layer = self._layers.get(id(lora_a_stacked))
        if layer is None or not x.dtype == y.dtype == torch.bfloat16 or scale != 1.0:  # vLLM merges the scaling into B
            super().add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, buffer=buffer, **kwargs)
            return
        while self._unmeasured:
            self._kernel.measure(*self._unmeasured.pop())
        self._kernel.add(layer, groups, x.view(-1, layer.inputs), y.view(-1, layer.outputs))

    def _apply_shrink(self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float) -> None:
        add_grouped(y.view(-1, y.shape[-1]), x, w_t_all, self._token_groups(), scale)

    def _apply_expand(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool = True,
    ) -> None:
        columns = y[:, y_offset : y_offset + y_slice_size]
        groups = self._token_groups()
        if not add_inputs:
            for _, tokens in groups:
                columns[tokens] = 0
        add_grouped(columns, x, w_t_all, groups, 1.0)

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,
        **_kwargs: Any,
    ) -> None:
        """``y[tokens] += x[tokens] @ B[slot].T`` for each group; x is (tokens, rank)."""
        self._apply_expand(y, x, lora_b_stacked, 0, y.shape[-1], add_inputs)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **_kwargs: Any,
    ) -> None:
        """The same as for a linear layer, for the sampled rows: x (samples, in), y (samples, vocabulary)."""
        groups = group_by_slot(self.sampler_indices.tolist())
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        hidden = torch.zeros(len(x), lora_b_stacked.shape[-1], dtype=torch.float32)
        add_grouped(hidden, x, lora_a_stacked, groups, scale)
        add_grouped(y, hidden, lora_b_stacked, groups, 1.0)

    def _token_groups(self) -> list[Group]:
        return group_by_slot(self.token_lora_indices.tolist())


def install() -> None:
    """Make vLLM's CPU platform use this wrapper, and register each linear layer with it."""
    name = f"{SegmentedPunicaWrapper.__module__}.{SegmentedPunicaWrapper.__qualname__}"
    type(current_platform).get_punica_wrapper = classmethod(lambda _cls: name)
    set_mapping = BaseLinearLayerWithLoRA.set_mapping

    def set_mapping_and_register(layer: Any, punica_wrapper: Any) -> None:
        set_mapping(layer, punica_wrapper)
        if isinstance(punica_wrapper, SegmentedPunicaWrapper):
            punica_wrapper.register_layer(layer)

    BaseLinearLayerWithLoRA.set_mapping = set_mapping_and_register
