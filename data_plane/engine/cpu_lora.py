"""LoRA arithmetic for vLLM's CPU backend that keeps tenants apart: tokens are grouped by adapter once a step, and each
group is multiplied by its own adapter's weights.

The stock operations (vLLM 0.32, ``vllm/lora/ops/torch_ops/lora_ops.py``) gather a copy of the adapter's weights for
every token and index it with -1 for tokens without LoRA, which selects the *last* slot: with all slots filled, a plain
request is answered in another tenant's voice (vLLM pull requests 48421 and 49656). Here -1 falls in no group.

The engine is started with LoRA on linear modules only, so the stock wrapper's other paths are never reached.
"""

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

Group = tuple[int, slice | torch.Tensor]


def group_by_slot(slot_of_token: list[int]) -> list[Group]:
    """(slot, tokens) for each slot >= 0 that occurs: a slice where tokens are adjacent, an index tensor otherwise."""
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


class SegmentedPunicaWrapper(PunicaWrapperCPU):  # type: ignore[misc] # vLLM ships no types
    """vLLM's CPU wrapper with the linear layers' arithmetic replaced."""

    _groups: tuple[Group, ...] = ()

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Called by vLLM once a step, before the layers run."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        self._groups = tuple(group_by_slot(self.token_lora_indices.tolist()))

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
        del buffer, kwargs
        if not self._groups:
            return
        x = x.view(-1, x.shape[-1])
        y = y.view(-1, y.shape[-1])
        for slot, tokens in self._groups:
            inputs = x[tokens]
            offset = 0
            for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                delta = (inputs @ a[slot, 0].t()) @ b[slot, 0].t()
                if scale != 1.0:  # vLLM merges the scaling into B when it loads an adapter
                    delta *= scale
                columns = y[:, offset : offset + width]
                if isinstance(tokens, slice):
                    columns[tokens] += delta
                else:
                    columns.index_add_(0, tokens, delta)
                offset += width


def install() -> None:
    """Make vLLM's CPU platform choose this wrapper."""
    name = f"{SegmentedPunicaWrapper.__module__}.{SegmentedPunicaWrapper.__qualname__}"
    type(current_platform).get_punica_wrapper = classmethod(lambda _cls: name)
