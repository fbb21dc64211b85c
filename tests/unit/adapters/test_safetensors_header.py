"""The header reader against the library, and against files made to mislead."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.safetensors_header import HeaderBounds, parse_header, read_header
from adapters.verdict import Refused
from tests.fixtures.peft_adapters import adapter_tensors, safetensors_bytes, tiny_base

BOUNDS = HeaderBounds()
NAMES = st.from_regex(r"[a-z_]{1,8}(\.[a-z0-9]{1,8}){0,3}", fullmatch=True)
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header, body=b"", *, text=None) -> bytes:
    text = json.dumps(header).encode() if text is None else text
    return struct.pack("<Q", len(text)) + text + body


def code_of(content: bytes, tmp_path) -> str:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        read_header(path, BOUNDS, file=path.name)
    problem = refused.value.problem
    assert problem.message.startswith("adapter_model.safetensors")
    assert problem.file == "adapter_model.safetensors"
    return problem.code


@given(st.dictionaries(NAMES, SHAPES, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_library_writes_is_read_with_the_same_meaning(tmp_path, shapes):
    random = np.random.default_rng(1)
    tensors = {name: random.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path, BOUNDS, file="x")
    content = path.read_bytes()
    assert {tensor.name: tensor.shape for tensor in found} == shapes
    for tensor in found:
        assert content[tensor.begin : tensor.end] == tensors[tensor.name].tobytes()


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mutated_file_is_refused_or_still_describes_every_byte_once(tmp_path, data):
    content = bytearray(safetensors_bytes(adapter_tensors(tiny_base(layers=1), rank=1, modules=("v_proj",))))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, min(len(content), 420) - 1))
        content[position] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    try:
        tensors = read_header(path, BOUNDS, file="x")
    except Refused:
        return
    position = 8 + int.from_bytes(content[:8], "little")
    for tensor in tensors:
        assert tensor.begin == position < tensor.end
        position = tensor.end
    assert position == len(content)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file_empty"),
        (b"1234567", "header_truncated"),
        (b"\xff" * 8 + b"{}", "header_too_large"),
        (struct.pack("<Q", 257 * 1024) + b" " * 257 * 1024, "header_too_large"),
        (struct.pack("<Q", 100) + b"{}", "header_truncated"),
        (file_of([]), "header_invalid"),
        (file_of(None, text=b"{nope}"), "header_invalid"),
        (file_of(None, text=b'{"\xff":1}'), "header_invalid"),
        (file_of(None, text=b' {"a":1}'), "header_invalid"),
        (file_of(None, text=b"[" * 100_000), "header_invalid"),
        (file_of(None, text=b'{"a":' * 20_000), "header_invalid"),
        (
            file_of(None, text=b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":1}', body=b"1234"),
            "header_invalid",
        ),
        (file_of(None, text=b'{"__metadata__":{},"__metadata__":{}}'), "header_invalid"),
        (file_of({"__metadata__": {"a": 1}}), "header_invalid"),
        (file_of({"a": {**entry(0, 4, [1]), "more": 1}}, b"1234"), "header_invalid"),
        (file_of({"a": 7}), "header_invalid"),
        (file_of({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)), "offsets_invalid"),
        (file_of({"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, bytes(8)), "offsets_invalid"),
        (file_of({"a": entry(0, 0, [0]), "b": entry(0, 8, [2])}, bytes(8)), "offsets_invalid"),
        (file_of({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, bytes(20)), "offsets_invalid"),
        (file_of({"a": entry(0, 8, [2])}, bytes(8) + b"PK\x03\x04 a zip behind the tensors"), "offsets_invalid"),
        (file_of({"a": entry(0, 8, [2])}, bytes(7)), "offsets_invalid"),
        (file_of({"a": {**entry(0, 8, [2]), "data_offsets": [0]}}, bytes(8)), "offsets_invalid"),
        (file_of({"a": entry(8, 0, [2])}, bytes(8)), "shape_mismatch"),
        (file_of({"a": entry(-8, 0, [2])}, bytes(8)), "offsets_invalid"),
        (file_of({"a": entry(0, 8, [3])}, bytes(8)), "shape_mismatch"),
        (file_of({"a": entry(0, 8, [2**62, 2**62, 2])}, bytes(8)), "shape_mismatch"),
        (file_of({"a": entry(0, 8, [-2])}, bytes(8)), "shape_mismatch"),
        (file_of({"a": entry(0, 8, [2.0])}, bytes(8)), "shape_mismatch"),
        (file_of({"a": entry(0, 4, [True])}, bytes(4)), "shape_mismatch"),
        (file_of({"a": entry(0, 4, [1] * 1000)}, bytes(4)), "shape_mismatch"),
        (file_of({"a": entry(0, 8, [1], "C64")}, bytes(8)), "dtype_not_allowed"),
        (file_of({"a": entry(0, 8, [16], "F4")}, bytes(8)), "dtype_not_allowed"),
        (file_of({"a": entry(0, 4, [1], None)}, bytes(4)), "dtype_not_allowed"),
        (file_of({"../../etc/x": entry(0, 4, [1])}, bytes(4)), "tensor_name_invalid"),
        (file_of({"a\0b": entry(0, 4, [1])}, bytes(4)), "tensor_name_invalid"),
        (file_of({"": entry(0, 4, [1])}, bytes(4)), "tensor_name_invalid"),
        (file_of({"x" * 100_000: entry(0, 4, [1])}, bytes(4)), "tensor_name_invalid"),
        (file_of({f"{number:x}": entry(0, 0, [0]) for number in range(3000)}), "offsets_invalid"),
    ],
)
def test_a_misleading_file_is_refused_with_its_code(content, code, tmp_path):
    assert code_of(content, tmp_path) == code


def test_more_tensors_than_allowed_are_refused_before_they_are_read():
    text = json.dumps({f"{number:x}": {} for number in range(4097)}).encode()
    with pytest.raises(Refused) as refused:
        parse_header(text, 0, BOUNDS, file="x")
    assert refused.value.problem.code == "too_many_tensors"


@pytest.mark.parametrize(
    ("layers", "hidden", "intermediate"), [(30, 576, 1536), (80, 8192, 28672), (126, 16384, 53248)]
)
def test_adapters_of_every_model_size_fit_the_bounds(layers, hidden, intermediate):
    base = tiny_base(layers=layers, hidden=hidden, kv=1024, intermediate=intermediate)
    header, offset = {}, 0
    for module, (in_features, out_features) in base.modules.items():
        for side, shape in (("A", [64, in_features]), ("B", [out_features, 64])):
            end = offset + shape[0] * shape[1] * 4
            header[f"base_model.model.{module}.lora_{side}.weight"] = entry(offset, end, shape)
            offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= BOUNDS.header_bytes
    assert len(parse_header(text, 8 + len(text) + offset, BOUNDS, file="x")) == layers * 14
