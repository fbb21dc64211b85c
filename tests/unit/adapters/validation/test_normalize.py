"""Re-serialization: one meaning, one digest, and the bfloat16 rounding of torch."""

import json
import shutil

import numpy as np
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapters.manifest import AdapterManifest, read_manifest
from adapters.report import ReportBuilder
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.normalize import normalize
from adapters.validation.validate import validate
from adapters.validation.weight_rules import is_finite, to_bfloat16
from tests.fixtures.late_import import LateModule
from tests.fixtures.uploads.peft_adapters import (
    ALL_KINDS,
    adapter_config,
    adapter_tensors,
    safetensors_bytes,
    tiny_base,
    write_adapter,
)

torch = LateModule("torch")

BASE = tiny_base()
LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000)


def rewritten(folder, target) -> AdapterManifest:
    report = ReportBuilder()
    accepted = validate(folder, base=BASE, known_bases={}, limits=LIMITS, bounds=PlatformBounds(), report=report)
    assert accepted is not None, report.build()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    return normalize(accepted, folder, target, BASE)


@given(arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False)))
def test_rounding_is_that_of_torch(values):
    expected = torch.from_numpy(values.copy()).bfloat16()
    assert (to_bfloat16(values) == expected.view(torch.uint16).numpy()).all()
    assert is_finite(to_bfloat16(values)) == bool(torch.isfinite(expected).all())


def test_ties_round_to_the_even_neighbor_and_the_largest_floats_to_infinity():
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert [hex(bits) for bits in to_bfloat16(values)] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]


def test_equivalent_uploads_give_the_same_bytes(tmp_path):
    plain = write_adapter(tmp_path / "plain", BASE, modules=("q_proj", "v_proj"))
    first = rewritten(plain, tmp_path / "first")

    other = write_adapter(tmp_path / "other", BASE, modules=("v_proj", "q_proj"))
    config = adapter_config(BASE, modules=("v_proj", "q_proj"), lora_dropout=0.1, base_model_name_or_path="/home/me/x")
    (other / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 8.0}, indent=7))
    tensors = dict(reversed(adapter_tensors(BASE).items()))
    (other / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors, metadata={"secret": "tenant's own"}))
    second = rewritten(other, tmp_path / "second")

    assert first.digest == second.digest
    for file in first.files:
        assert (tmp_path / "first" / file.path).read_bytes() == (tmp_path / "second" / file.path).read_bytes()
        assert b"tenant's own" not in (tmp_path / "second" / file.path).read_bytes()


def test_another_weight_alpha_rank_or_base_gives_another_digest(tmp_path):
    digests = {
        rewritten(write_adapter(tmp_path / f"{number}", BASE, **options), tmp_path / "out").digest
        for number, options in enumerate(
            [{}, {"seed": 1}, {"alpha": 9}, {"rank": 5}, {"use_rslora": True}, {"modules": ("q_proj",)}]
        )
    }
    assert len(digests) == 6


def test_the_file_holds_the_rounded_weights_under_canonical_names_in_order(tmp_path):
    folder = write_adapter(tmp_path / "in", BASE, modules=ALL_KINDS, rank=3)
    manifest = rewritten(folder, tmp_path / "out")
    path = tmp_path / "out" / "adapter_model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert list(header) == sorted(header)
    assert length % 8 == 0
    original = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
    with safetensors.safe_open(path, framework="pt") as written:
        assert set(written.keys()) == set(original)
        for name, weights in original.items():
            assert torch.equal(written.get_tensor(name), torch.from_numpy(weights).bfloat16())
    assert manifest.tensor_count == len(original) == 28
    assert manifest.target_modules == tuple(sorted(ALL_KINDS))


def test_bfloat16_weights_pass_unchanged(tmp_path):
    folder = write_adapter(tmp_path / "in", BASE, dtype="BF16")
    rewritten(folder, tmp_path / "out")
    with (
        safetensors.safe_open(folder / "adapter_model.safetensors", framework="pt") as before,
        safetensors.safe_open(tmp_path / "out" / "adapter_model.safetensors", framework="pt") as after,
    ):
        for name in before.keys():  # noqa: SIM118 - a handle, not a dict
            assert torch.equal(before.get_tensor(name), after.get_tensor(name))


def test_an_adapter_of_some_layers_names_its_modules_in_full(tmp_path):
    folder = write_adapter(tmp_path / "in", BASE, layers_to_transform=[1])
    tensors = {name: weights for name, weights in adapter_tensors(BASE).items() if "layers.1." in name}
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))
    manifest = rewritten(folder, tmp_path / "out")
    assert manifest.target_modules == ("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj")


def test_the_config_holds_only_what_a_loader_needs_and_the_platforms_base_id(tmp_path):
    rewritten(write_adapter(tmp_path / "in", BASE), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_bytes()) == {
        "base_model_name_or_path": "tiny-instruct",
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": 8,
        "peft_type": "LORA",
        "r": 4,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
    }


def test_the_stored_manifest_is_found_again_by_its_digest(tmp_path):
    manifest = rewritten(write_adapter(tmp_path / "in", BASE), tmp_path / "out")
    assert read_manifest((tmp_path / "out" / "manifest.json").read_bytes(), manifest.digest) == manifest
    assert manifest.size_bytes == sum((tmp_path / "out" / file.path).stat().st_size for file in manifest.files)
