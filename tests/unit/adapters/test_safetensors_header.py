"""The header reader on files written by the library and on their mutations. Misleading files are in the corpus."""

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.safetensors_header import HeaderBounds, parse_header, read_header
from tests.fixtures.uploads.peft_adapters import tiny_base

BOUNDS = HeaderBounds()
NAMES = st.from_regex(r"[a-z_]{1,8}(\.[a-z0-9]{1,8}){0,3}", fullmatch=True)
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@given(st.dictionaries(NAMES, SHAPES, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_headers_written_by_the_library_are_read_with_the_same_meaning(tmp_path, shapes):
    random = np.random.default_rng(1)
    tensors = {name: random.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path, BOUNDS, file="x")
    content = path.read_bytes()
    assert {tensor.name: tensor.shape for tensor in found} == shapes
    for tensor in found:
        assert content[tensor.begin : tensor.end] == tensors[tensor.name].tobytes()


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
