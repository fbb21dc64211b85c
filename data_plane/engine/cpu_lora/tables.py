"""The int64 tables that ``kernel`` reads by address: a layer's weights, and a step's groups of tokens.

The constants are indices into those tables. Nothing is compiled or multiplied here.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

RANK_BLOCK: Final = 4
"""Ranks are multiplied in blocks of this size, so the rank of a slot must be a multiple of it."""
# A layer: number of output slices, inputs, outputs of all slices. Then for each slice: A, its bytes per slot and row,
# B, its bytes per slot and row, outputs, and the ranks in use by slot.
LAYER_SLICES, LAYER_INPUTS, LAYER_OUTPUTS, LAYER_FIELDS = range(4)
SLICE_A, SLICE_A_SLOT, SLICE_A_ROW, SLICE_B, SLICE_B_SLOT, SLICE_B_ROW, SLICE_OUTPUTS, SLICE_RANKS = range(8)
SLICE_FIELDS: Final = 8
# A step's groups: their number, the token indices group by group, the start of each group among them, its slot.
GROUPS_COUNT, GROUPS_ORDER, GROUPS_STARTS, GROUPS_SLOTS = range(4)


class Groups:
    """The tokens of one step grouped by slot: ``order`` (tokens,), ``starts`` (groups + 1,), ``slots`` (groups,).
    Tokens of slot -1 are in no group.
    """

    def __init__(self, slot_of_token: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        order = np.argsort(slot_of_token, kind="stable")
        in_order = slot_of_token[order]
        first = int(np.searchsorted(in_order, 0))
        self.order = order[first:].astype(np.int32)
        slots, begins = np.unique(in_order[first:], return_index=True)
        self.slots = slots.astype(np.int32)
        self.starts = np.append(begins, len(self.order)).astype(np.int32)
        self.tokens = len(slot_of_token)
        addresses = [each.ctypes.data for each in (self.order, self.starts, self.slots)]
        self._table = np.array([len(slots), *addresses], dtype=np.int64)
        self.address = self._table.ctypes.data


class Layer:
    """One LoRA layer's stacked weights: A (slots, 1, rank, in) and B (slots, 1, out, rank) for each output slice, in
    bfloat16, with B's memory in rank-major order (``to_rank_major``). Keeps the tensors alive.

    ``ranks`` (slices, slots) is the number of ranks to multiply, in whole blocks. Code that changes a slot must record
    its ranks or measure them.
    """

    def __init__(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> None:
        self.weights = (tuple(a), tuple(b))
        slots, _, self.rank_max, self.inputs = a[0].shape
        self.outputs = sum(each.shape[2] for each in b)
        self.ranks = np.zeros((len(a), slots), dtype=np.int32)
        self.hidden = len(a) * self.rank_max
        table = [len(a), self.inputs, self.outputs]
        for down, up, ranks in zip(a, b, self.ranks, strict=True):
            table += [down.data_ptr(), 2 * down.stride(0), 2 * down.stride(2)]
            table += [up.data_ptr(), 2 * up.stride(0), 2 * up.stride(3), up.shape[2], ranks.ctypes.data]
        self._table = np.array(table, dtype=np.int64)
        self.address = self._table.ctypes.data

    def record_ranks(self, slot: int, a: Sequence[torch.Tensor | None]) -> bool:
        """Record a slot's ranks from the weights A (rank, in) that were written to it, None for a slice without
        weights. False when there is not one entry for each slice.
        """
        if len(a) != len(self.ranks):
            return False
        for index, weights in enumerate(a):
            self.ranks[index, slot] = 0 if weights is None else -(-weights.shape[0] // RANK_BLOCK) * RANK_BLOCK
        return True


def to_rank_major(b: torch.Tensor) -> torch.Tensor:
    """A copy of B (…, out, rank) in rank-major memory order: all outputs of one rank are contiguous."""
    return b.transpose(-2, -1).clone(memory_format=torch.contiguous_format).transpose(-2, -1)


def is_supported(a: Sequence[torch.Tensor]) -> bool:
    """Whether the kernel supports weights of this type and rank."""
    return all(each.dtype == torch.bfloat16 and each.shape[2] % RANK_BLOCK == 0 for each in a)
