"""The parent believes no manifest that cannot be true, whatever the child was made to say."""

import msgspec
import pytest

from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest, StoredFile
from adapters.validation.bounds import UploadLimits
from adapters.validation.manifest_rules import find_impossible
from tests.fixtures.uploads.peft_adapters import tiny_base

BASE = tiny_base()
LIMITS = UploadLimits(plan_name="starter", rank_max=16, bytes_max=10_000)
CONFIG = StoredFile(path=CONFIG_FILE, size_bytes=300, sha256="a" * 64)
WEIGHTS = StoredFile(path=WEIGHTS_FILE, size_bytes=5_000, sha256="b" * 64)
GOOD = AdapterManifest(
    base_model=BASE.id, rank=8, alpha=16, use_rslora=False, target_modules=("q_proj",), tensor_count=4,
    files=(CONFIG, WEIGHTS),
)  # fmt: skip


def test_a_manifest_of_a_real_adapter_is_believed():
    assert find_impossible(GOOD, BASE, LIMITS) is None
    by_name = msgspec.structs.replace(GOOD, target_modules=("model.layers.0.self_attn.q_proj",))
    assert find_impossible(by_name, BASE, LIMITS) is None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"base_model": "other-7b"}, "base model"),
        ({"version": 2}, "version"),
        ({"files": (CONFIG, msgspec.structs.replace(WEIGHTS, path="../x"))}, "names"),
        ({"files": (WEIGHTS, CONFIG)}, "names"),
        ({"files": (CONFIG,)}, "names"),
        ({"files": (CONFIG, msgspec.structs.replace(WEIGHTS, sha256="../" + "b" * 61))}, "hashes"),
        ({"files": (CONFIG, msgspec.structs.replace(WEIGHTS, size_bytes=-1))}, "sizes"),
        ({"files": (CONFIG, msgspec.structs.replace(WEIGHTS, size_bytes=2 << 20))}, "sizes"),
        ({"rank": 17}, "rank"),
        ({"rank": 0}, "rank"),
        ({"alpha": 0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"target_modules": ()}, "modules"),
        ({"target_modules": ("lm_head",)}, "modules"),
        ({"target_modules": ("../../etc",)}, "modules"),
        ({"tensor_count": 0}, "tensors"),
        ({"tensor_count": 1000}, "tensors"),
    ],
)
def test_an_impossible_statement_is_named(change, what):
    assert find_impossible(msgspec.structs.replace(GOOD, **change), BASE, LIMITS) == what
