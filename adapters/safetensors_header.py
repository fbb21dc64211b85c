"""Reads the header of a safetensors file with bounds, before any library sees the file.

Format: 8 bytes little-endian length N, N bytes of JSON, then the tensors' bytes without holes
(https://github.com/huggingface/safetensors, format section). The library in version 0.8 accepts duplicate names and
half a million empty tensors; this reader does not. It does not check the values of weights.
"""

import math
import re
from pathlib import Path
from typing import Final

import msgspec

from adapters.report import Code, FileRejected, UploadProblem
from core.strict_json import JsonRefused, parse, shorten

DTYPE_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

_LENGTH_BYTES: Final = 8
_DEPTH: Final = 3  # {name: {shape: [..]}}
_DIMENSIONS_MAX: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9_]+(?:[.\-][A-Za-z0-9_]+)*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_AGAIN: Final = "save the file again"
NOT_GATHERED: Final = (
    "weights that DeepSpeed ZeRO-3 did not gather are saved empty: save with stage3_gather_16bit_weights_on_model_save "
    "or gather a checkpoint with its zero_to_fp32.py (--exclude_frozen_parameters --safe_serialization)"
)


class HeaderBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How large a header may be.

    Rank 8 on all seven linear modules is 54 KB of header for 30 layers (420 tensors), 150 KB for 80 (1,120 tensors)
    and 244 KB for the 126 layers of the largest Llama (1,764 tensors), so 256 KiB hold every adapter we can serve.
    """

    header_bytes: int = 256 * 1024
    tensors: int = 4096
    name_characters: int = 256


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies: ``begin`` and ``end`` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path, bounds: HeaderBounds, *, file: str) -> list[TensorEntry]:
    """Return the tensors of a file in byte order. ``file`` is the name in messages. Raises ``FileRejected``."""
    size = path.stat().st_size
    if size == 0:
        raise _refused("file_empty", file, "is empty; upload it again")
    with path.open("rb") as stream:
        prefix = stream.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise _refused(
                "header_truncated", file, f"has {size} bytes, fewer than the header's length field; upload it again"
            )
        length = int.from_bytes(prefix, "little")
        if length > bounds.header_bytes:
            raise _refused(
                "header_too_large",
                file,
                f"declares a header of {length} bytes; {bounds.header_bytes} are allowed: save LoRA tensors only",
            )
        text = stream.read(length)
    if len(text) < length:
        raise _refused("header_truncated", file, f"ends inside its header of {length} bytes; upload it again")
    return parse_header(text, size, bounds, file=file)


def parse_header(text: bytes, file_bytes: int, bounds: HeaderBounds, *, file: str) -> list[TensorEntry]:
    """The tensors that the header ``text`` of a file of ``file_bytes`` bytes describes. Raises ``FileRejected``."""
    if not text.startswith(b"{"):
        raise _refused("header_invalid", file, f"has a header that does not begin with '{{'; {_AGAIN}")
    try:
        header = parse(text, depth_max=_DEPTH)
    except JsonRefused as error:
        raise _refused("header_invalid", file, f"has an invalid header: {error}; {_AGAIN}") from None
    assert isinstance(header, dict), "it begins with a brace"
    _check_metadata(header.pop("__metadata__", None), file)
    if len(header) > bounds.tensors:
        raise _refused(
            "too_many_tensors", file, f"has {len(header)} tensors; {bounds.tensors} are allowed: save LoRA only"
        )
    data_begin = _LENGTH_BYTES + len(text)
    tensors = [_read_entry(name, entry, data_begin, bounds, file) for name, entry in header.items()]
    _check_not_empty(tensors, file)
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_offsets(tensors, data_begin, file_bytes, file)
    return tensors


def _check_metadata(metadata: object, file: str) -> None:
    if metadata is not None and not (
        isinstance(metadata, dict) and all(_is_text(text) for pair in metadata.items() for text in pair)
    ):
        text = f"has a __metadata__ that does not map texts to texts; {_AGAIN}"
        raise _refused("header_invalid", file, text)


def _is_text(value: object) -> bool:
    """A lone surrogate is a string to Python and an error to the library."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _read_entry(name: str, entry: object, data_begin: int, bounds: HeaderBounds, file: str) -> TensorEntry:
    if len(name) > bounds.name_characters or not _NAME.fullmatch(name):
        raise _refused(
            "tensor_name_invalid",
            file,
            f"has a tensor named {shorten(name)}; names are letters, digits, '_', '-' and '.', "
            f"at most {bounds.name_characters} characters: {_AGAIN}",
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _refused(
            "header_invalid", file, f"{name} must have exactly dtype, shape and data_offsets; {_AGAIN}", name
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _refused(
            "dtype_not_allowed", file, f"{name} has dtype {shorten(dtype)}; save it as F32, F16 or BF16", name
        )
    if not _are_naturals(shape) or len(shape) > _DIMENSIONS_MAX:
        raise _refused(
            "shape_mismatch",
            file,
            f"{name} has the shape {shorten(shape)}; it must be a list of at most {_DIMENSIONS_MAX} whole numbers: "
            "save it again",
            name,
        )
    if not _are_naturals(offsets) or len(offsets) != 2:
        raise _refused(
            "offsets_invalid",
            file,
            f"{name} has the offsets {shorten(offsets)}; two whole numbers are needed; {_AGAIN}",
            name,
        )
    begin, end = offsets
    declared = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != declared:
        raise _refused(
            "shape_mismatch",
            file,
            f"{name}: {shorten(shape)} of {dtype} is {shorten(declared)} bytes, not {end - begin}; save it again",
            name,
        )
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), begin=data_begin + begin, end=data_begin + end)


def _check_not_empty(tensors: list[TensorEntry], file: str) -> None:
    if empty := [tensor.name for tensor in tensors if tensor.begin == tensor.end]:
        what = f"has no elements, as {len(empty)} of {len(tensors)} tensors; {NOT_GATHERED}"
        problem = _refused("offsets_invalid", file, f"{empty[0]} {what}", empty[0]).problem
        raise FileRejected(msgspec.structs.replace(problem, count=len(empty)))


def _are_naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def _check_offsets(tensors: list[TensorEntry], data_begin: int, file_bytes: int, file: str) -> None:
    position = data_begin
    for tensor in tensors:
        if tensor.begin != position:
            kind = "overlaps the tensor before it" if tensor.begin < position else "leaves a hole before it"
            raise _refused("offsets_invalid", file, f"{tensor.name} {kind}; {_AGAIN}", tensor.name)
        position = tensor.end
    if position != file_bytes:
        what = "bytes behind its last tensor" if position < file_bytes else "fewer bytes than its tensors need"
        text = f"has {what} ({file_bytes} bytes; its header describes {position}); upload it again"
        raise _refused("offsets_invalid", file, text)


def _refused(code: Code, file: str, what: str, where: str | None = None) -> FileRejected:
    separator = ": " if where else " "
    return FileRejected(UploadProblem(code=code, message=f"{file}{separator}{what}", file=file, where=where))
