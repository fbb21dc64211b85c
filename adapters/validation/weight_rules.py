"""Weights as numbers: read in bounded chunks, checked, and rounded to bfloat16 with integer arithmetic.

Plain reads instead of a memory map keep the process within its address-space limit whatever the size of the file.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from adapters.manifest import WEIGHTS_FILE
from adapters.report import ReportBuilder
from adapters.safetensors_header import DTYPE_BYTES, TensorEntry
from adapters.validation.bounds import WeightBounds
from adapters.validation.config_rules import AdapterConfig
from adapters.validation.tensor_rules import LoraPair

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

CHUNK_ELEMENTS: Final = 1 << 20
BFLOAT16_BYTES: Final = 2


def check_weights(
    path: Path, pairs: list[LoraPair], config: AdapterConfig, bounds: WeightBounds, report: ReportBuilder
) -> None:
    """Refuse values that are not finite, in float32 or as bfloat16, or far too large. Reads the whole file once."""
    silent = True
    with path.open("rb") as stream:
        for pair in pairs:
            norms = [_check_values(stream, tensor, bounds, report) for tensor in (pair.a, pair.b)]
            if None in norms:
                continue
            scaling = config.scaling_of(pair.module, pair.rank)
            norm = math.prod(norm for norm in norms if norm is not None) * scaling
            silent = silent and norm == 0
            if norm > bounds.update_norm:
                limit = f"{bounds.update_norm:g} is allowed; train with a lower learning rate"
                text = f"{pair.module}: |A|·|B|·scaling is {norm:.3g}; {limit}"
                report.refuse("weights_out_of_range", text, file=WEIGHTS_FILE, where=pair.a.name, cause="update")
    if silent and pairs and not report.count:
        report.note("every update is zero: the adapter changes nothing")


def _check_values(stream: BinaryIO, tensor: TensorEntry, bounds: WeightBounds, report: ReportBuilder) -> float | None:
    """The tensor's Euclidean norm, or None after a problem."""
    squares, largest = 0.0, 0.0
    for values in read_values(stream, tensor):
        finite = np.isfinite(values).all() and is_finite(to_bfloat16(values))
        if not finite:
            text = f"{tensor.name} holds NaN, infinity or a value above bfloat16; train with a lower learning rate"
            report.refuse("weights_not_finite", text, file=WEIGHTS_FILE, where=tensor.name)
            return None
        largest = max(largest, float(np.abs(values).max()))
        flat = values.astype(np.float64)
        squares += float(flat @ flat)
    if largest > bounds.magnitude:
        limit = f"weights up to {bounds.magnitude:g} are allowed; train with a lower learning rate"
        text = f"{tensor.name} holds {largest:.3g}; {limit}"
        report.refuse("weights_out_of_range", text, file=WEIGHTS_FILE, where=tensor.name, cause="magnitude")
        return None
    return math.sqrt(squares)


def read_values(stream: BinaryIO, tensor: TensorEntry) -> Iterator[Floats]:
    """The tensor's elements in order as flat float32 arrays of at most ``CHUNK_ELEMENTS``."""
    for raw in _read_chunks(stream, tensor):
        yield _to_float32(raw, tensor.dtype)


def read_rows(stream: BinaryIO, tensor: TensorEntry) -> Iterator[Floats]:
    """The tensor's rows in order, [rows, columns] in float32; about ``CHUNK_ELEMENTS`` elements at once."""
    columns = tensor.shape[1]
    for raw in _read_chunks(stream, tensor, elements=max(1, CHUNK_ELEMENTS // columns) * columns):
        yield _to_float32(raw, tensor.dtype).reshape(-1, columns)


def _to_float32(raw: bytes, dtype: str) -> Floats:
    if dtype == "F64":
        with np.errstate(over="ignore"):  # a value above float32 becomes infinity, which is refused
            return np.frombuffer(raw, "<f8").astype(np.float32)
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def read_bfloat16(stream: BinaryIO, tensor: TensorEntry) -> Iterator[bytes]:
    """The tensor's elements in order as little-endian bfloat16, rounded to nearest even. BF16 passes unchanged."""
    if tensor.dtype == "BF16":
        yield from _read_chunks(stream, tensor)
        return
    for values in read_values(stream, tensor):
        yield to_bfloat16(values).astype("<u2").tobytes()


def to_bfloat16(values: Floats) -> Bits:
    """The bfloat16 bit patterns nearest to ``values``, ties to even; values above the largest become infinity.

    Not for NaN, whose payload could round to infinity: check ``np.isfinite`` first.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def is_finite(bits: Bits) -> bool:
    """Whether no bfloat16 bit pattern is an infinity or NaN."""
    return bool(((bits & 0x7F80) != 0x7F80).all())


def _read_chunks(stream: BinaryIO, tensor: TensorEntry, *, elements: int = CHUNK_ELEMENTS) -> Iterator[bytes]:
    stream.seek(tensor.begin)
    remaining, step = tensor.end - tensor.begin, elements * DTYPE_BYTES[tensor.dtype]
    while remaining:
        raw = stream.read(min(step, remaining))
        if not raw:
            raise EOFError(f"the file ends inside {tensor.name}")
        remaining -= len(raw)
        yield raw
