"""A few seconds of the header fuzzer with a fixed seed, and a check that it detects a defect. ``make fuzz`` runs it for
longer.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from adapters.safetensors_header import HeaderBounds, TensorEntry, parse_header
from tests.corpus.uploads.corpus import seeds
from tests.corpus.uploads.item import entry, weights_file
from tests.fuzz.same_tensors import assert_same_tensors

FUZZER = Path(__file__).parent / "fuzz_header.py"
RUNS = 4_000


def test_the_header_reader_and_the_library_agree_on_thousands_of_mutations(tmp_path):
    """Single-threaded and seeded: the same files in the same order each time."""
    done = subprocess.run(
        # No bound on memory: a child's peak is counted from its parent's, and this parent has run other tests.
        [sys.executable, str(FUZZER), f"-runs={RUNS}", "-seed=1", "-rss_limit_mb=0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == [], "no finding was written"


def test_the_fuzzer_begins_with_good_files_and_bad_ones():
    assert 40 < len(seeds()) < 200
    assert max(map(len, seeds())) <= 4096


@pytest.mark.parametrize("wrong", ["name", "dtype", "shape", "begin"])
def test_a_tensor_read_differently_is_noticed(wrong):
    content = weights_file({"a": entry(0, 8, [2])}, bytes([1]) + bytes(7))
    length = int.from_bytes(content[:8], "little")
    (tensor,) = parse_header(content[8 : 8 + length], len(content), HeaderBounds(), file="x")
    assert_same_tensors(content, [tensor])
    other = {"name": "b", "dtype": "I32", "shape": (1, 2), "begin": tensor.begin - 1}[wrong]
    fields = {field: getattr(tensor, field) for field in TensorEntry.__struct_fields__}
    with pytest.raises(AssertionError):
        assert_same_tensors(content, [TensorEntry(**(fields | {wrong: other}))])
