"""Bad uploads, rows U1 to U19: weights files whose header lies, is too large, or is no header."""

import json
from collections.abc import Callable, Iterator

from tests.corpus.uploads.item import CONFIG, Q0, WEIGHTS, Item, entry, good_tensors, of_tensors, weights_file

_TWO = entry(0, 8, [2])
_HOMOGLYPH = Q0.format("A").replace("lora", "l\N{CYRILLIC SMALL LETTER O}ra")


def _header(row: str, what: str, code: str, make: Callable[[], bytes], *says: str, **more: object) -> Item:
    return Item(row=row, what=what, code=code, says=says, files=lambda: {WEIGHTS: make()}, **more)


def _text(row: str, what: str, code: str, text: bytes, *says: str, body: bytes = b"") -> Item:
    return _header(row, what, code, lambda: weights_file(None, body, text=text), *says)


def _entries(row: str, what: str, code: str, header: dict, body: bytes, *says: str, **more: object) -> Item:
    return _header(row, what, code, lambda: weights_file(header, body), *says, **more)


def _of_dtype(dtype: str, element_bytes: int) -> Callable[[], bytes]:
    """The good adapter with one tensor of another type, and of that type's size."""

    def make() -> bytes:
        tensors = []
        for name, weights in good_tensors().items():
            if name == Q0.format("A"):
                tensors.append((name, dtype, list(weights.shape), bytes(weights.size * element_bytes)))
            else:
                tensors.append((name, "F32", list(weights.shape), weights.tobytes()))
        return of_tensors(tensors)

    return make


def _half_a_million_empty_tensors() -> bytes:
    entries = ",".join(f'"a{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(500_000))
    return weights_file(None, text=f"{{{entries}}}".encode())


def sizes() -> Iterator[Item]:
    """U1 to U5: the file and its header's length."""
    empty = {"stage": "announce", "status": 400}
    yield _header("U1", "empty weights", "file_empty", bytes, "empty", "upload it again", **empty)
    yield Item(row="U1", what="empty config", code="file_empty", says=("empty", "upload it again"), file=CONFIG,
               files=lambda: {CONFIG: b""}, **empty)  # fmt: skip
    yield _header("U2", "seven bytes", "header_truncated", lambda: b"1234567", "7 bytes", "upload it again")
    yield _header("U3", "header of 2^64-1 bytes", "header_too_large", lambda: b"\xff" * 8 + b"{}",
                  "18446744073709551615", "save LoRA tensors only")  # fmt: skip
    yield _text("U4", "header of 257 KiB", "header_too_large", b" " * 257 * 1024, "263168", "save LoRA tensors only")
    yield _header("U5", "header longer than the file", "header_truncated",
                  lambda: (100).to_bytes(8, "little") + b"{}", "100 bytes", "upload it again")  # fmt: skip


def texts() -> Iterator[Item]:
    """U6 to U8: headers that are no JSON object with each name once."""
    fix = "save the file again"
    for what, text in {
        "no text": b"",
        "a list": b"[]",
        "not JSON": b"{nope}",
        "bad UTF-8": b'{"\xff":1}',
        "leading space": b' {"a":1}',
        "a byte order mark": b'\xef\xbb\xbf{"a":1}',
        "UTF-16": '{"a":1}'.encode("utf-16-le"),
        "a number for a tensor": b'{"a":7}',
        "NaN": b'{"a":NaN}',
        "text behind the object": b'{"__metadata__":{}} x',
        "an integer of 5,000 digits": b'{"a":%b}' % (b"9" * 5000),
        "metadata that is no text": b'{"__metadata__":{"a":1}}',
        "metadata that is a list": b'{"__metadata__":[]}',
        "half a surrogate in the metadata": b'{"__metadata__":{"a":"\\ud800"}}',
        "half a surrogate in a name": json.dumps({"a\ud800": _TWO}).encode(),
        "an entry with one more field": json.dumps({"a": {**_TWO, "more": 1}}).encode(),
        "an entry without offsets": b'{"a":{"dtype":"F32","shape":[2]}}',
    }.items():
        yield _text("U6", what, "header_invalid", text, fix, body=bytes(8))
    yield _text("U7", "100,000 brackets", "header_invalid", b'{"a":' + b"[" * 100_000, "deep", fix)
    yield _text("U7", "20,000 objects", "header_invalid", b'{"a":' * 20_000, "deep", fix)
    one = json.dumps(_TWO).encode()
    for what, text in {
        "the same tensor twice": b'{"a":%b,"a":%b}' % (one, one),
        "the same tensor escaped": b'{"a":%b,"\\u0061":%b}' % (one, one),
        "metadata twice": b'{"__metadata__":{},"__metadata__":{},"a":%b}' % one,
        "a field of an entry twice": b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}',
    }.items():
        yield _text("U8", what, "header_invalid", text, "twice", fix, body=bytes(8))


def offsets() -> Iterator[Item]:
    """U9 to U15: where tensors lie, and what their shapes make of it."""
    again = "upload it again"
    for row, what, header, size, says in (
        ("U9", "overlapping", {"a": _TWO, "b": entry(4, 12, [2])}, 12, ("b", "overlaps", "save the file again")),
        ("U10", "the same range twice", {"a": _TWO, "b": _TWO}, 8, ("b", "overlaps", "save the file again")),
        ("U10", "an empty tensor", {"a": entry(0, 0, [0]), "b": _TWO}, 8, ("a", "no elements", "ZeRO-3")),
        ("U11", "a hole", {"a": _TWO, "b": entry(12, 20, [2])}, 20, ("b", "hole", "save the file again")),
        ("U11", "a hole in front", {"a": entry(4, 12, [2])}, 12, ("a", "hole", "save the file again")),
        ("U12", "bytes behind the tensors", {"a": _TWO}, 9, ("behind its last tensor", again)),
        ("U12", "fewer bytes than tensors", {"a": _TWO}, 7, ("fewer bytes", again)),
        (
            "U12",
            "one offset",
            {"a": {**_TWO, "data_offsets": [0]}},
            8,
            ("a", "two whole numbers", "save the file again"),
        ),
        ("U12", "a negative offset", {"a": entry(-8, 0, [2])}, 8, ("a", "-8", "save the file again")),
        ("U12", "a fractional offset", {"a": entry(0, 8.0, [2])}, 8, ("a", "8.0", "save the file again")),
        ("U12", "an offset of 2^64", {"a": entry(1 << 64, (1 << 64) + 8, [2])}, 8, ("a", "save the file again")),
    ):
        yield _entries(row, what, "offsets_invalid", header, bytes(size), *says)
    yield _text(
        "U12",
        "an offset of minus zero",
        "offsets_invalid",
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}',
        "save the file again",
        body=bytes(8),
    )
    yield _header("U12", "a zip behind the tensors", "offsets_invalid",
                  lambda: weights_file({"a": _TWO}, bytes(8) + b"PK\x03\x04 a zip"), "behind", again)  # fmt: skip
    for row, what, shape in (
        ("U13", "a shape of other bytes", [3]),
        ("U14", "a product above 2^64", [2**62, 2**62, 2]),
        ("U14", "a product that wraps around to the right size", [2**61 + 1, 8]),
        ("U15", "a negative dimension", [-2]),
        ("U15", "a fractional dimension", [2.0]),
        ("U15", "a dimension that is true", [True]),
        ("U15", "a dimension in words", ["2"]),
        ("U15", "no list", 2),
        ("U15", "a thousand dimensions", [1] * 1000),
        ("U15", "a dimension above 2^63", [1 << 63]),
    ):
        header = {"a": entry(0, 8, shape)}
        yield _entries(row, what, "shape_mismatch", header, bytes(8), "a", "save it again", where="a")
    reversed_range = {"a": entry(8, 0, [2])}
    yield _entries("U13", "a range that ends before it begins", "shape_mismatch", reversed_range, bytes(8), "a", "-8")


def tensors() -> Iterator[Item]:
    """U16 to U19: how many tensors there are, their types and names."""
    many = {f"{number:x}": {} for number in range(4097)}
    yield _entries("U16", "4,097 tensors", "too_many_tensors", many, b"", "4097", "4096", "save LoRA only")
    yield _header("U16", "half a million empty tensors", "header_too_large", _half_a_million_empty_tensors,
                  "save LoRA tensors only")  # fmt: skip
    yield _entries(
        "U16",
        "3,000 empty tensors",
        "offsets_invalid",
        {f"{number:x}": entry(0, 0, [0]) for number in range(3000)},
        b"",
        "no elements",
        "3000 of 3000",
        "zero_to_fp32.py",
    )
    served = "F32, F16"
    for dtype, element_bytes in (("I64", 8), ("U16", 2), ("F8_E4M3", 1), ("BOOL", 1)):
        yield _header("U17", f"type {dtype}", "dtype_not_allowed", _of_dtype(dtype, element_bytes), dtype, served,
                      where=Q0.format("A"))  # fmt: skip
    for dtype in ("C64", "F4", "F6_E2M3", "float32", "f32", "", None, 7, ["F32"]):
        header = {"a": entry(0, 8, [1], dtype)}
        yield _entries("U17", f"type {dtype!r}", "dtype_not_allowed", header, bytes(8), "a", served, where="a")
    for what, name in {
        "a path": "../../etc/x",
        "NUL": "a\0b",
        "nothing": "",
        "a newline": "a\nb",
        "a homoglyph": _HOMOGLYPH,
        "text that runs backwards": "a\u202eb",
        "a dot at the end": "a.",
        "257 characters": "x" * 257,
    }.items():
        yield _entries("U18", f"named {what}", "tensor_name_invalid", {name: _TWO}, bytes(8), "names are letters")
    yield _entries("U19", "a name of 200 KB", "tensor_name_invalid", {"x" * 200_000: _TWO}, bytes(8), "at most 256")
    yield _entries("U19", "a name of 1 MB", "header_too_large", {"x" * 1_000_000: _TWO}, bytes(8), "262144")


ITEMS = (*sizes(), *texts(), *offsets(), *tensors())
