"""The compiled part of LoRA on the CPU: ``y += (x @ A.T) @ B.T`` in bfloat16 for tokens grouped by adapter. numba, a
dependency of vLLM, compiles it. ``punica_wrapper`` manages slots and their changes.

A call has two or three microseconds of overhead. It reads weights where vLLM keeps them, copies nothing, and sums
products in float32. Tokens are divided among the OpenMP threads that PyTorch already has, so a call of a few tokens
starts no thread. Blocks of four tokens and four ranks keep the sums in registers: see "Anatomy of High-Performance
Matrix Multiplication" (Goto and van de Geijn, 2008).
"""

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numba import cfunc, njit, types

from data_plane.engine.cpu_lora.loops import (
    FAST,
    expand_eight,
    expand_eight_wide,
    expand_tile,
    halves,
    ints,
    longs,
    shrink_four,
    shrink_one,
    widen_eight,
)
from data_plane.engine.cpu_lora.tables import (
    GROUPS_COUNT,
    GROUPS_ORDER,
    GROUPS_SLOTS,
    GROUPS_STARTS,
    LAYER_FIELDS,
    LAYER_INPUTS,
    LAYER_OUTPUTS,
    LAYER_SLICES,
    RANK_BLOCK,
    SLICE_A,
    SLICE_A_ROW,
    SLICE_A_SLOT,
    SLICE_B,
    SLICE_B_ROW,
    SLICE_B_SLOT,
    SLICE_FIELDS,
    SLICE_OUTPUTS,
    SLICE_RANKS,
    Groups,
    Layer,
)

_TILE: Final = 256  # outputs that are summed in float32 before rounding; they fit in the L1 cache
_SHARING_TOKENS: Final = 3  # from this many tokens of one adapter on, its weights are widened once for all of them
_LINE: Final = 32  # outputs in one cache line; two threads must not write the same line
_TEAM_MACS: Final = 1 << 16  # with fewer multiply-adds, waking a second thread costs more than it saves
# One call, as a table of int64: x, y and their rows in bytes; the layer and the groups; h as [slice][token][rank] with
# its rows and slices in bytes; each thread's tile; grouped tokens; checksum of the sources of the code that ran.
_X, _Y, _X_ROW, _Y_ROW, _LAYER, _GROUPS, _H, _H_ROW, _H_SLICE, _TILES, _TOKENS, _SIGNATURE, _CALL_FIELDS = range(13)


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _shrink(call: int, first: int, last: int) -> None:
    """``h = x @ A.T`` for the tokens ``[first, last)`` in the groups' order, for each slice."""
    c = longs(call)
    layer, groups = longs(c[_LAYER]), longs(c[_GROUPS])
    starts, slots, order = ints(groups[GROUPS_STARTS]), ints(groups[GROUPS_SLOTS]), groups[GROUPS_ORDER]
    x, x_row, inputs, h_row = c[_X], c[_X_ROW], layer[LAYER_INPUTS], c[_H_ROW]
    for group in range(groups[GROUPS_COUNT]):
        begin, end, slot = max(first, starts[group]), min(last, starts[group + 1]), slots[group]
        for index in range(layer[LAYER_SLICES] if begin < end else 0):
            part = c[_LAYER] + 8 * (LAYER_FIELDS + SLICE_FIELDS * index)
            weights = longs(part)
            rank, a = ints(weights[SLICE_RANKS])[slot], weights[SLICE_A] + weights[SLICE_A_SLOT] * slot
            token, h = begin if rank > 0 else end, c[_H] + c[_H_SLICE] * index
            while token + 4 <= end:
                shrink_four(x, x_row, order + 4 * token, inputs, part, slot, h + h_row * token, h_row)
                token += 4
            while token < end:
                row = x + x_row * ints(order)[token]
                shrink_one(row, a, weights[SLICE_A_ROW], inputs, rank, h + h_row * token)
                token += 1


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _expand(call: int, first: int, last: int, tile: int) -> None:
    """``y += h @ B.T`` for each grouped token and the outputs ``[first, last)`` of all slices side by side."""
    c = longs(call)
    layer, groups = longs(c[_LAYER]), longs(c[_GROUPS])
    starts, slots, order = ints(groups[GROUPS_STARTS]), ints(groups[GROUPS_SLOTS]), ints(groups[GROUPS_ORDER])
    offset = 0
    for index in range(layer[LAYER_SLICES]):
        part = longs(c[_LAYER] + 8 * (LAYER_FIELDS + SLICE_FIELDS * index))
        begin, end = max(first - offset, 0), min(last - offset, part[SLICE_OUTPUTS])
        h = c[_H] + c[_H_SLICE] * index
        for group in range(groups[GROUPS_COUNT] if begin < end else 0):
            slot = slots[group]
            rank, b = ints(part[SLICE_RANKS])[slot], part[SLICE_B] + part[SLICE_B_SLOT] * slot
            shared = rank == 8 and starts[group + 1] - starts[group] >= _SHARING_TOKENS
            for start in range(begin, end if rank > 0 else begin, _TILE):
                count, y, b_start = min(_TILE, end - start), c[_Y] + 2 * (offset + start), b + 2 * start
                if shared:
                    widen_eight(b_start, part[SLICE_B_ROW], count, tile)
                for token in range(starts[group], starts[group + 1]):
                    row, mine = y + c[_Y_ROW] * order[token], h + c[_H_ROW] * token
                    if shared:
                        expand_eight_wide(row, tile, count, mine)
                    elif rank == 8:
                        expand_eight(row, b_start, part[SLICE_B_ROW], count, mine)
                    else:
                        expand_tile(row, b_start, part[SLICE_B_ROW], count, rank, mine, tile)
        offset += part[SLICE_OUTPUTS]


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
def _rank_of(a: int, a_row: int, rows: int, inputs: int) -> int:
    """The number of A's rows in use: the rows after them are zero (``-0.0`` counts as zero)."""
    for rank in range(rows, 0, -1):
        row = halves(a + a_row * (rank - 1))
        for i in range(inputs):
            if row[i] & 0x7FFF:
                return rank
    return 0


_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
_wait_for_team = types.ExternalFunction("GOMP_barrier", types.void())


def _entries(sources: int) -> tuple[Any, Any]:
    """The two entry points. numba's cache key covers this file and the closures of its functions, but not the files
    whose functions they call. ``sources`` is a checksum of those files; each call writes it as a signature.
    """

    @cfunc(types.void(types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
    def alone(call: int) -> None:
        c = longs(call)
        c[_SIGNATURE] = sources
        _shrink(call, 0, c[_TOKENS])
        _expand(call, 0, longs(c[_LAYER])[LAYER_OUTPUTS], c[_TILES])

    @cfunc(types.void(types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
    def in_team(call: int) -> None:
        # Threads divide the tokens for h and the outputs for y. The base layer's product was divided by outputs too,
        # and fetching outputs that another core has just written costs more than computing them.
        c, thread, threads = longs(call), _thread(), _threads()
        c[_SIGNATURE] = sources
        tokens, outputs = c[_TOKENS], longs(c[_LAYER])[LAYER_OUTPUTS]
        _shrink(call, tokens * thread // threads, tokens * (thread + 1) // threads)
        _wait_for_team()
        share = -(-outputs // (threads * _LINE)) * _LINE
        tile = c[_TILES] + 4 * 8 * _TILE * thread
        _expand(call, min(outputs, share * thread), min(outputs, share * (thread + 1)), tile)

    return alone, in_team


class Kernel:
    """The compiled code with its scratch memory. Only one thread may call it at a time: vLLM's worker."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._tiles = np.zeros((threads, 8 * _TILE), dtype=np.float32)
        self._hidden = np.zeros(0, dtype=np.float32)
        self._call = np.zeros(_CALL_FIELDS, dtype=np.int64)
        self._call[_TILES] = self._tiles.ctypes.data
        self._call_address = self._call.ctypes.data
        sources = _sources()
        alone, in_team = _entries(sources)
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_int64)(alone.address)
        self._team = _team_of_pytorch() if threads > 1 else None
        self._in_team = in_team
        nothing = Groups(np.zeros(0, dtype=np.int64))
        no_layer = np.zeros(LAYER_FIELDS, dtype=np.int64)
        self._call[_LAYER], self._call[_GROUPS] = no_layer.ctypes.data, nothing.address
        self._alone(self._call_address)
        if self._call[_SIGNATURE] != sources:
            raise RuntimeError("numba cached LoRA code of other sources; delete the files in NUMBA_CACHE_DIR")

    def measure(self, layer: Layer, slot: int) -> None:
        """Measure the rank of a slot's weights: rows of A beyond it are zero and are skipped from now on."""
        for index, a in enumerate(layer.weights[0]):
            rank = _rank_of(a[slot].data_ptr(), 2 * a.stride(2), layer.rank_max, layer.inputs)
            layer.ranks[index, slot] = -(-rank // RANK_BLOCK) * RANK_BLOCK

    def add(self, layer: Layer, groups: Groups, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the layer's LoRA product of x (tokens, in) to y (tokens, out), both bfloat16 with contiguous columns.
        Raises ValueError for shapes that do not fit.
        """
        tokens = len(groups.order)
        if groups.tokens > x.shape[0] or x.shape[0] != y.shape[0]:
            raise ValueError(f"{groups.tokens} tokens are mapped; x has {x.shape[0]} rows and y {y.shape[0]}")
        if x.shape[1] != layer.inputs or y.shape[1] != layer.outputs or x.stride(1) != 1 or y.stride(1) != 1:
            raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} do not fit the layer")
        if (needed := tokens * layer.hidden) > self._hidden.size:
            self._hidden = np.zeros(needed, dtype=np.float32)
        call = self._call
        call[_X], call[_Y], call[_X_ROW], call[_Y_ROW] = x.data_ptr(), y.data_ptr(), 2 * x.stride(0), 2 * y.stride(0)
        call[_LAYER], call[_GROUPS], call[_TOKENS] = layer.address, groups.address, tokens
        call[_H], call[_H_ROW] = self._hidden.ctypes.data, 4 * layer.rank_max
        call[_H_SLICE] = 4 * layer.rank_max * tokens
        macs = tokens * (layer.inputs + layer.outputs) * RANK_BLOCK * 2
        if self._team is not None and macs > _TEAM_MACS:
            self._team(self._in_team.address, self._call_address, self._threads, 0)
        else:
            self._alone(self._call_address)


def _sources() -> int:
    """A checksum of the other files whose functions are compiled into this file's."""
    here = Path(__file__).parent
    return zlib.crc32(b"".join((here / name).read_bytes() for name in ("loops.py", "tables.py")))


def _team_of_pytorch() -> Callable[[int, int, int, int], None] | None:
    """GNU's OpenMP entry point, which runs a function on the threads of PyTorch's OpenMP; Intel's library has it too.
    None when neither library is loaded.
    """
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
    return function
