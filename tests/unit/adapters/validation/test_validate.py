"""Whole folders: accepted uploads, notes, and the bound of a report. Bad folders are in the corpus of uploads."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from adapters.report import ReportBuilder
from adapters.validation.bounds import PlatformBounds, UploadLimits
from adapters.validation.normalize import normalize
from adapters.validation.validate import validate
from tests.fixtures.uploads.peft_adapters import adapter_tensors, safetensors_bytes, tiny_base, write_adapter

BASE = tiny_base()
WEIGHTS = "adapter_model.safetensors"
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000)


def judge(folder, base=BASE, limits=LIMITS):
    report = ReportBuilder()
    accepted = validate(
        folder,
        base=base,
        known_bases={base.id.casefold(): base.id, base.hub_name.casefold(): base.id},
        limits=limits,
        bounds=PlatformBounds(),
        report=report,
    )
    verdict = report.build()
    assert (accepted is None) == bool(verdict.problems)
    return accepted, verdict


def into(tmp_path):
    """A new empty folder."""
    return Path(tempfile.mkdtemp(dir=tmp_path))


def check_tensors(tmp_path, change, *, dtype="F32", rank=4, **config):
    """Judge a valid adapter after ``change`` was applied to its dict of tensors."""
    folder = write_adapter(tmp_path / "adapter", BASE, rank=rank, **config)
    tensors = adapter_tensors(BASE, rank=rank)
    tensors = change(tensors) or tensors
    (folder / WEIGHTS).write_bytes(safetensors_bytes(tensors, dtype=dtype))
    return judge(folder)[1]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("options", [{}, {"rank": 64}, {"rank": 1, "modules": ("down_proj",)}, {"use_rslora": True}])
def test_a_valid_adapter_is_accepted(tmp_path, dtype, options):
    accepted, verdict = judge(write_adapter(tmp_path, BASE, dtype=dtype, **options))
    assert verdict.notes == ()
    assert accepted.config.rank == options.get("rank", 4)
    assert len(accepted.pairs) == 2 * len(options.get("modules", ("q_proj", "v_proj")))


def test_an_adapter_that_changes_nothing_is_accepted_with_a_note(tmp_path):
    zero = {name: np.zeros_like(w) for name, w in adapter_tensors(BASE).items() if "lora_B" in name}
    verdict = check_tensors(tmp_path, lambda tensors: tensors | zero)
    assert verdict.notes == ("every update is zero: the adapter changes nothing",)


def test_a_layer_left_out_is_missing_unless_the_config_says_so(tmp_path):
    def first_layer_alone(tensors):
        return {name: weights for name, weights in tensors.items() if "layers.0." in name}

    assert {p.code for p in check_tensors(tmp_path / "a", first_layer_alone).problems} == {"tensor_missing"}
    assert check_tensors(tmp_path / "b", first_layer_alone, layers_to_transform=[0]).problems == ()


def test_one_cause_is_one_problem_with_its_count_and_the_first_places(tmp_path):
    base = tiny_base(layers=100)
    folder = write_adapter(tmp_path, base, modules=("q_proj", "k_proj", "v_proj"), scale=np.inf)
    (problem,) = judge(folder, base, UploadLimits(plan_name="x", rank_max=64, bytes_max=10_000_000))[1].problems
    assert (problem.code, problem.count) == ("weights_not_finite", 600)
    assert f"{problem.where} holds NaN" in problem.message
    assert problem.message.count("base_model.model.") == 3
    assert "The same is true of 599 more: " in problem.message


def test_a_report_of_many_causes_shows_fifty_and_counts_the_rest():
    report = ReportBuilder()
    for number in range(60):
        report.refuse("config_invalid", f"{number} is wrong", file="adapter_config.json")
    assert len(report.build().problems) == 50
    assert report.build().notes == ("10 more problems are not shown",)


def test_float64_weights_are_rounded_with_a_note_and_refused_above_float32(tmp_path):
    single, double = (write_adapter(tmp_path / dtype, BASE, dtype=dtype) for dtype in ("F32", "F64"))
    rounded = [normalize(judge(folder)[0], folder, into(tmp_path), BASE).digest for folder in (single, double)]
    assert rounded[0] == rounded[1]
    assert judge(double)[1].notes == ("8 of 8 tensors are F64; they were rounded, as all weights, to BF16",)
    tensors = {name: weights.astype(np.float64) for name, weights in adapter_tensors(BASE).items()}
    tensors[Q0.format("B")][0, 0] = 1e300
    (double / WEIGHTS).write_bytes(safetensors_bytes(tensors, dtype="F64"))
    assert [(p.code, p.where) for p in judge(double)[1].problems] == [("weights_not_finite", Q0.format("B"))]


def test_problems_of_config_and_header_are_reported_together(tmp_path):
    folder = write_adapter(tmp_path, BASE, r=128)
    with (folder / WEIGHTS).open("ab") as stream:
        stream.write(b"PK\x03\x04")
    assert {problem.code for problem in judge(folder)[1].problems} == {"rank_too_large", "offsets_invalid"}


def test_links_and_folders_are_refused(tmp_path):
    folder = write_adapter(tmp_path / "adapter", BASE)
    (folder / "README.md").symlink_to("/etc/passwd")
    (folder / "notes.md").mkdir()
    assert [(p.code, p.file) for p in judge(folder)[1].problems] == [
        ("file_not_allowed", "README.md"),
        ("file_not_allowed", "notes.md"),
    ]
