"""The native half of LoRA on the CPU: ``y += (x @ A.T) @ B.T`` in bfloat16 for tokens grouped by adapter, compiled by
numba, which vLLM brings along. What a slot is and when it changes is ``cpu_lora``'s business.

A call costs two or three microseconds before it multiplies, weights are read where vLLM keeps them, nothing is copied,
and products are summed in float32. Tokens are shared out to the OpenMP threads that PyTorch already has, so a call of
a few tokens starts no thread. Blocks of four tokens and four ranks keep the sums in registers: see "Anatomy of
High-Performance Matrix Multiplication" (Goto and van de Geijn, 2008).
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from data_plane.engine.worker.cpu_lora_tables import (
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

_TILE: Final = 256  # outputs summed in float32 before they are rounded: they stay in the L1 cache
_LINE: Final = 32  # outputs in a cache line, which no two threads should write
_TEAM_MACS: Final = 1 << 16  # below this much work, waking a second thread costs more than it saves
_FAST: Final = {"reassoc", "contract", "nsz"}  # sums may be reordered; NaN and infinity stay what they are
# One call, as a table of int64: x, y and their rows in bytes; the layer and the groups; h as [slice][token][rank] with
# its rows and slices in bytes; each thread's tile; grouped tokens.
_X, _Y, _X_ROW, _Y_ROW, _LAYER, _GROUPS, _H, _H_ROW, _H_SLICE, _TILES, _TOKENS, _CALL_FIELDS = range(12)


def _pointer(item: Any, llvm_type: ir.Type) -> Any:
    @intrinsic  # type: ignore[untyped-decorator] # numba ships no types
    def pointer(_typing: Any, _address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], llvm_type.as_pointer())

        return types.CPointer(item)(types.int64), code

    return pointer


_halves = _pointer(types.uint16, ir.IntType(16))
_floats = _pointer(types.float32, ir.FloatType())
_ints = _pointer(types.int32, ir.IntType(32))
_longs = _pointer(types.int64, ir.IntType(64))


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def _widen(_typing: Any, _bits: Any) -> Any:
    """The float32 of a bfloat16's bits."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def _narrow(_typing: Any, _value: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even, as PyTorch rounds; NaN stays NaN."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(word, 0x7FFF)), odd)
        is_nan = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        chosen = builder.select(is_nan, ir.Constant(word, 0x7FC00000), rounded)
        return builder.trunc(builder.lshr(chosen, ir.Constant(word, 16)), ir.IntType(16))

    return types.uint16(types.float32), code


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _shrink_four(x: int, x_row: int, order: int, inputs: int, part: int, slot: int, h: int, h_row: int) -> None:
    """``h[token, r] = x[token] . A[r]`` for the four tokens whose numbers are at ``order``."""
    token, weights = _ints(order), _longs(part)
    rank, a, a_row = (
        _ints(weights[SLICE_RANKS])[slot],
        weights[SLICE_A] + weights[SLICE_A_SLOT] * slot,
        weights[SLICE_A_ROW],
    )
    p, q = _halves(x + x_row * token[0]), _halves(x + x_row * token[1])
    s, t = _halves(x + x_row * token[2]), _halves(x + x_row * token[3])
    hp, hq, hs, ht = _floats(h), _floats(h + h_row), _floats(h + 2 * h_row), _floats(h + 3 * h_row)
    for r in range(0, rank, RANK_BLOCK):
        a0, a1 = _halves(a + a_row * r), _halves(a + a_row * (r + 1))
        a2, a3 = _halves(a + a_row * (r + 2)), _halves(a + a_row * (r + 3))
        p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = np.float32(0)
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0)
        for i in range(inputs):
            pi, qi, si, ti = _widen(p[i]), _widen(q[i]), _widen(s[i]), _widen(t[i])
            w0, w1, w2, w3 = _widen(a0[i]), _widen(a1[i]), _widen(a2[i]), _widen(a3[i])
            p0, p1, p2, p3 = p0 + pi * w0, p1 + pi * w1, p2 + pi * w2, p3 + pi * w3
            q0, q1, q2, q3 = q0 + qi * w0, q1 + qi * w1, q2 + qi * w2, q3 + qi * w3
            s0, s1, s2, s3 = s0 + si * w0, s1 + si * w1, s2 + si * w2, s3 + si * w3
            t0, t1, t2, t3 = t0 + ti * w0, t1 + ti * w1, t2 + ti * w2, t3 + ti * w3
        hp[r], hp[r + 1], hp[r + 2], hp[r + 3] = p0, p1, p2, p3
        hq[r], hq[r + 1], hq[r + 2], hq[r + 3] = q0, q1, q2, q3
        hs[r], hs[r + 1], hs[r + 2], hs[r + 3] = s0, s1, s2, s3
        ht[r], ht[r + 1], ht[r + 2], ht[r + 3] = t0, t1, t2, t3


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _shrink_one(x: int, a: int, a_row: int, inputs: int, rank: int, h: int) -> None:
    """``h[r] = x . A[r]`` for one token."""
    p, out = _halves(x), _floats(h)
    for r in range(0, rank, RANK_BLOCK):
        a0, a1 = _halves(a + a_row * r), _halves(a + a_row * (r + 1))
        a2, a3 = _halves(a + a_row * (r + 2)), _halves(a + a_row * (r + 3))
        s0 = s1 = s2 = s3 = np.float32(0)
        for i in range(inputs):
            v = _widen(p[i])
            s0, s1 = s0 + v * _widen(a0[i]), s1 + v * _widen(a1[i])
            s2, s3 = s2 + v * _widen(a2[i]), s3 + v * _widen(a3[i])
        out[r], out[r + 1], out[r + 2], out[r + 3] = s0, s1, s2, s3


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _expand_tile(b: int, b_row: int, count: int, rank: int, h: int, out: int) -> None:
    """``out[k] = sum of h[r] * B[r, k]`` for one token and one tile of outputs, in float32."""
    weights, total = _floats(h), _floats(out)
    for r in range(0, rank, RANK_BLOCK):
        b0, b1 = _halves(b + b_row * r), _halves(b + b_row * (r + 1))
        b2, b3 = _halves(b + b_row * (r + 2)), _halves(b + b_row * (r + 3))
        h0, h1, h2, h3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        if r == 0:
            for k in range(count):
                total[k] = h0 * _widen(b0[k]) + h1 * _widen(b1[k]) + h2 * _widen(b2[k]) + h3 * _widen(b3[k])
        else:
            for k in range(count):
                total[k] += h0 * _widen(b0[k]) + h1 * _widen(b1[k]) + h2 * _widen(b2[k]) + h3 * _widen(b3[k])


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _expand_one(y: int, b: int, b_row: int, count: int, rank: int, h: int, tile: int) -> None:
    """``y += h @ B.T`` for one token and at most a tile of outputs, rounded once."""
    row, total = _halves(y), _floats(tile)
    _expand_tile(b, b_row, count, rank, h, tile)
    for k in range(count):
        row[k] = _narrow(_widen(row[k]) + total[k])


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _shrink(call: int, first: int, last: int) -> None:
    """``h = x @ A.T`` of the tokens ``[first, last)`` in the groups' order, for every slice."""
    c = _longs(call)
    layer, groups = _longs(c[_LAYER]), _longs(c[_GROUPS])
    starts, slots, order = _ints(groups[GROUPS_STARTS]), _ints(groups[GROUPS_SLOTS]), groups[GROUPS_ORDER]
    x, x_row, inputs, h_row = c[_X], c[_X_ROW], layer[LAYER_INPUTS], c[_H_ROW]
    for group in range(groups[GROUPS_COUNT]):
        begin, end, slot = max(first, starts[group]), min(last, starts[group + 1]), slots[group]
        for index in range(layer[LAYER_SLICES] if begin < end else 0):
            part = c[_LAYER] + 8 * (LAYER_FIELDS + SLICE_FIELDS * index)
            weights = _longs(part)
            rank, a = _ints(weights[SLICE_RANKS])[slot], weights[SLICE_A] + weights[SLICE_A_SLOT] * slot
            token, h = begin if rank > 0 else end, c[_H] + c[_H_SLICE] * index
            while token + 4 <= end:
                _shrink_four(x, x_row, order + 4 * token, inputs, part, slot, h + h_row * token, h_row)
                token += 4
            while token < end:
                row = x + x_row * _ints(order)[token]
                _shrink_one(row, a, weights[SLICE_A_ROW], inputs, rank, h + h_row * token)
                token += 1


@njit(fastmath=_FAST)  # type: ignore[untyped-decorator] # numba ships no types
def _expand(call: int, first: int, last: int, tile: int) -> None:
    """``y += h @ B.T`` of every grouped token, for the outputs ``[first, last)`` of all slices side by side."""
    c = _longs(call)
    layer, groups = _longs(c[_LAYER]), _longs(c[_GROUPS])
    starts, slots, order = _ints(groups[GROUPS_STARTS]), _ints(groups[GROUPS_SLOTS]), _ints(groups[GROUPS_ORDER])
    offset = 0
    for index in range(layer[LAYER_SLICES]):
        part = _longs(c[_LAYER] + 8 * (LAYER_FIELDS + SLICE_FIELDS * index))
        begin, end = max(first - offset, 0), min(last - offset, part[SLICE_OUTPUTS])
        h = c[_H] + c[_H_SLICE] * index
        for group in range(groups[GROUPS_COUNT] if begin < end else 0):
            slot = slots[group]
            rank, b = _ints(part[SLICE_RANKS])[slot], part[SLICE_B] + part[SLICE_B_SLOT] * slot
            for start in range(begin, end if rank > 0 else begin, _TILE):
                count, y = min(_TILE, end - start), c[_Y] + 2 * (offset + start)
                for token in range(starts[group], starts[group + 1]):
                    row, mine = y + c[_Y_ROW] * order[token], h + c[_H_ROW] * token
                    _expand_one(row, b + 2 * start, part[SLICE_B_ROW], count, rank, mine, tile)
        offset += part[SLICE_OUTPUTS]


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
def _rank_of(a: int, a_row: int, rows: int, inputs: int) -> int:
    """How many of A's rows are in use: those beyond it are zero, as is ``-0.0``."""
    for rank in range(rows, 0, -1):
        row = _halves(a + a_row * (rank - 1))
        for i in range(inputs):
            if row[i] & 0x7FFF:
                return rank
    return 0


_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
_wait_for_team = types.ExternalFunction("GOMP_barrier", types.void())


@cfunc(types.void(types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
def _alone(call: int) -> None:
    c = _longs(call)
    _shrink(call, 0, c[_TOKENS])
    _expand(call, 0, _longs(c[_LAYER])[LAYER_OUTPUTS], c[_TILES])


@cfunc(types.void(types.int64), cache=True)  # type: ignore[untyped-decorator] # numba ships no types
def _in_team(call: int) -> None:
    """Tokens are shared out for h, outputs for y: the base layer's product was shared out by outputs too, and what
    another core has just written of y costs more to fetch than to compute.
    """
    c, thread, threads = _longs(call), _thread(), _threads()
    tokens, outputs = c[_TOKENS], _longs(c[_LAYER])[LAYER_OUTPUTS]
    _shrink(call, tokens * thread // threads, tokens * (thread + 1) // threads)
    _wait_for_team()
    share = -(-outputs // (threads * _LINE)) * _LINE
    _expand(call, min(outputs, share * thread), min(outputs, share * (thread + 1)), c[_TILES] + 4 * _TILE * thread)


class Kernel:
    """The compiled code with its scratch memory. Called by one thread at a time, vLLM's worker."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._tiles = np.zeros((threads, _TILE), dtype=np.float32)
        self._hidden = np.zeros(0, dtype=np.float32)
        self._call = np.zeros(_CALL_FIELDS, dtype=np.int64)
        self._call[_TILES] = self._tiles.ctypes.data
        self._call_address = self._call.ctypes.data
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_alone.address)
        self._team = _team_of_pytorch() if threads > 1 else None

    def measure(self, layer: Layer, slot: int) -> None:
        """Look at what was put into a slot: rows of A beyond its rank are zero, and are not multiplied from now on."""
        for index, a in enumerate(layer.weights[0]):
            rank = _rank_of(a[slot].data_ptr(), 2 * a.stride(2), layer.rank_max, layer.inputs)
            layer.ranks[index, slot] = -(-rank // RANK_BLOCK) * RANK_BLOCK

    def add(self, layer: Layer, groups: Groups, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the layer's LoRA product of x (tokens, in) to y (tokens, out), both bfloat16 with adjacent columns."""
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
            self._team(_in_team.address, self._call_address, self._threads, 0)
        else:
            self._alone(self._call_address)


def _team_of_pytorch() -> Callable[[int, int, int, int], None] | None:
    """Run a function on the threads of the OpenMP that PyTorch has loaded, by GNU's entry point, which Intel's library
    has too; None where there is neither.
    """
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
    return function
