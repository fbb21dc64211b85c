"""The inner loops of ``kernel``: one block of tokens, one tile of outputs. Arithmetic on addresses, compiled by numba.

``tables`` defines the memory layout.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from data_plane.engine.cpu_lora.tables import RANK_BLOCK, SLICE_A, SLICE_A_ROW, SLICE_A_SLOT, SLICE_RANKS

FAST: Final = {"reassoc", "contract", "nsz"}
"""The compiler may reorder sums; NaN and infinity are preserved."""


def _pointer(item: Any, llvm_type: ir.Type) -> Any:
    @intrinsic  # type: ignore[untyped-decorator] # numba ships no types
    def pointer(_typing: Any, _address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], llvm_type.as_pointer())

        return types.CPointer(item)(types.int64), code

    return pointer


halves = _pointer(types.uint16, ir.IntType(16))
floats = _pointer(types.float32, ir.FloatType())
ints = _pointer(types.int32, ir.IntType(32))
longs = _pointer(types.int64, ir.IntType(64))


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def widen(_typing: Any, _bits: Any) -> Any:
    """Convert the bits of a bfloat16 to float32."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic  # type: ignore[untyped-decorator] # numba ships no types
def narrow(_typing: Any, _value: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even, as PyTorch rounds. NaN stays NaN: every NaN here comes from a
    bfloat16 or from an operation and has no low bits that could carry.
    """

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(word, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, ir.Constant(word, 16)), ir.IntType(16))

    return types.uint16(types.float32), code


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def shrink_four(x: int, x_row: int, order: int, inputs: int, part: int, slot: int, h: int, h_row: int) -> None:
    """``h[token, r] = x[token] . A[r]`` for the four tokens whose indices are at ``order``."""
    token, weights = ints(order), longs(part)
    rank, a, a_row = (
        ints(weights[SLICE_RANKS])[slot],
        weights[SLICE_A] + weights[SLICE_A_SLOT] * slot,
        weights[SLICE_A_ROW],
    )
    p, q = halves(x + x_row * token[0]), halves(x + x_row * token[1])
    s, t = halves(x + x_row * token[2]), halves(x + x_row * token[3])
    hp, hq, hs, ht = floats(h), floats(h + h_row), floats(h + 2 * h_row), floats(h + 3 * h_row)
    for r in range(0, rank, RANK_BLOCK):
        a0, a1 = halves(a + a_row * r), halves(a + a_row * (r + 1))
        a2, a3 = halves(a + a_row * (r + 2)), halves(a + a_row * (r + 3))
        p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = np.float32(0)
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0)
        for i in range(inputs):
            pi, qi, si, ti = widen(p[i]), widen(q[i]), widen(s[i]), widen(t[i])
            w0, w1, w2, w3 = widen(a0[i]), widen(a1[i]), widen(a2[i]), widen(a3[i])
            p0, p1, p2, p3 = p0 + pi * w0, p1 + pi * w1, p2 + pi * w2, p3 + pi * w3
            q0, q1, q2, q3 = q0 + qi * w0, q1 + qi * w1, q2 + qi * w2, q3 + qi * w3
            s0, s1, s2, s3 = s0 + si * w0, s1 + si * w1, s2 + si * w2, s3 + si * w3
            t0, t1, t2, t3 = t0 + ti * w0, t1 + ti * w1, t2 + ti * w2, t3 + ti * w3
        hp[r], hp[r + 1], hp[r + 2], hp[r + 3] = p0, p1, p2, p3
        hq[r], hq[r + 1], hq[r + 2], hq[r + 3] = q0, q1, q2, q3
        hs[r], hs[r + 1], hs[r + 2], hs[r + 3] = s0, s1, s2, s3
        ht[r], ht[r + 1], ht[r + 2], ht[r + 3] = t0, t1, t2, t3


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def shrink_one(x: int, a: int, a_row: int, inputs: int, rank: int, h: int) -> None:
    """``h[r] = x . A[r]`` for one token."""
    p, out = halves(x), floats(h)
    for r in range(0, rank, RANK_BLOCK):
        a0, a1 = halves(a + a_row * r), halves(a + a_row * (r + 1))
        a2, a3 = halves(a + a_row * (r + 2)), halves(a + a_row * (r + 3))
        s0 = s1 = s2 = s3 = np.float32(0)
        for i in range(inputs):
            v = widen(p[i])
            s0, s1 = s0 + v * widen(a0[i]), s1 + v * widen(a1[i])
            s2, s3 = s2 + v * widen(a2[i]), s3 + v * widen(a3[i])
        out[r], out[r + 1], out[r + 2], out[r + 3] = s0, s1, s2, s3


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def expand_eight(y: int, b: int, b_row: int, count: int, h: int) -> None:
    """``y[k] += sum of h[r] * B[r, k]`` for one token and rank 8, the most common rank, rounded once."""
    row, v = halves(y), floats(h)
    b0, b1, b2, b3 = halves(b), halves(b + b_row), halves(b + 2 * b_row), halves(b + 3 * b_row)
    b4, b5, b6, b7 = halves(b + 4 * b_row), halves(b + 5 * b_row), halves(b + 6 * b_row), halves(b + 7 * b_row)
    h0, h1, h2, h3, h4, h5, h6, h7 = v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]
    for k in range(count):
        low = h0 * widen(b0[k]) + h1 * widen(b1[k]) + h2 * widen(b2[k]) + h3 * widen(b3[k])
        high = h4 * widen(b4[k]) + h5 * widen(b5[k]) + h6 * widen(b6[k]) + h7 * widen(b7[k])
        row[k] = narrow(widen(row[k]) + low + high)


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def widen_eight(b: int, b_row: int, count: int, wide: int) -> None:
    """Convert eight ranks of a tile of B to float32 in ``wide`` (8, count), for groups in which several tokens share
    it.
    """
    for r in range(8):
        row, out = halves(b + b_row * r), floats(wide + 4 * count * r)
        for k in range(count):
            out[k] = widen(row[k])


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def expand_eight_wide(y: int, wide: int, count: int, h: int) -> None:
    """``expand_eight`` on the output of ``widen_eight``."""
    row, v, line = halves(y), floats(h), 4 * count
    b0, b1, b2, b3 = floats(wide), floats(wide + line), floats(wide + 2 * line), floats(wide + 3 * line)
    b4, b5, b6, b7 = floats(wide + 4 * line), floats(wide + 5 * line), floats(wide + 6 * line), floats(wide + 7 * line)
    h0, h1, h2, h3, h4, h5, h6, h7 = v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]
    for k in range(count):
        low = h0 * b0[k] + h1 * b1[k] + h2 * b2[k] + h3 * b3[k]
        high = h4 * b4[k] + h5 * b5[k] + h6 * b6[k] + h7 * b7[k]
        row[k] = narrow(widen(row[k]) + low + high)


@njit(fastmath=FAST)  # type: ignore[untyped-decorator] # numba ships no types
def expand_tile(y: int, b: int, b_row: int, count: int, rank: int, h: int, tile: int) -> None:
    """The same for any rank: sums in float32 in a tile that fits in the L1 cache, and rounds once."""
    row, weights, total = halves(y), floats(h), floats(tile)
    for k in range(count):
        total[k] = widen(row[k])
    for r in range(0, rank, RANK_BLOCK):
        b0, b1 = halves(b + b_row * r), halves(b + b_row * (r + 1))
        b2, b3 = halves(b + b_row * (r + 2)), halves(b + b_row * (r + 3))
        h0, h1, h2, h3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        for k in range(count):
            total[k] += h0 * widen(b0[k]) + h1 * widen(b1[k]) + h2 * widen(b2[k]) + h3 * widen(b3[k])
    for k in range(count):
        row[k] = narrow(total[k])
