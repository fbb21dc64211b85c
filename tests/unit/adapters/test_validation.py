"""Whole folders, each wrong in one way: the code, the file and the tensor that the report names."""

import json
import pickle
import zipfile

import numpy as np
import pytest

from adapters.validation import Bounds, UploadLimits, validate
from adapters.verdict import Report
from tests.fixtures.peft_adapters import adapter_tensors, safetensors_bytes, tiny_base, write_adapter

BASE = tiny_base()
WEIGHTS = "adapter_model.safetensors"
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
LIMITS = UploadLimits(plan_name="starter", rank_max=64, bytes_max=1_000_000)


def judge(folder, base=BASE, limits=LIMITS):
    report = Report()
    accepted = validate(
        folder, base=base, known_bases={base.id, base.hub_name}, limits=limits, bounds=Bounds(), report=report
    )
    verdict = report.verdict()
    assert (accepted is None) == bool(verdict.problems)
    return accepted, verdict


def judge_tensors(tmp_path, change, *, dtype="F32", rank=4, **config):
    """Judge a valid adapter after ``change`` was applied to its dict of tensors."""
    folder = write_adapter(tmp_path / "adapter", BASE, rank=rank, **config)
    tensors = adapter_tensors(BASE, rank=rank)
    tensors = change(tensors) or tensors
    (folder / WEIGHTS).write_bytes(safetensors_bytes(tensors, dtype=dtype))
    return judge(folder)[1]


def renamed(old, new):
    return lambda tensors: {new if name == old else name: weights for name, weights in tensors.items()}


def replaced(name, weights):
    return lambda tensors: tensors | {name: weights}


def holding(value):
    def change(tensors):
        tensors[Q0.format("A")][1, 1] = value

    return change


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("options", [{}, {"rank": 64}, {"rank": 1, "modules": ("down_proj",)}, {"use_rslora": True}])
def test_a_valid_adapter_is_accepted(tmp_path, dtype, options):
    accepted, verdict = judge(write_adapter(tmp_path, BASE, dtype=dtype, **options))
    assert verdict.notes == ()
    assert accepted.config.rank == options.get("rank", 4)
    assert len(accepted.pairs) == 2 * len(options.get("modules", ("q_proj", "v_proj")))


def test_an_adapter_that_changes_nothing_is_accepted_with_a_note(tmp_path):
    zero = {name: np.zeros_like(w) for name, w in adapter_tensors(BASE).items() if "lora_B" in name}
    verdict = judge_tensors(tmp_path, lambda tensors: tensors | zero)
    assert verdict.notes == ("every update is zero: the adapter changes nothing",)


WIDE = np.zeros((4, 64), np.float32)
WRONG_TENSORS = {
    "nan": (holding(np.nan), "weights_not_finite", Q0.format("A")),
    "infinite": (holding(np.inf), "weights_not_finite", Q0.format("A")),
    "infinite as bfloat16": (holding(3.4e38), "weights_not_finite", Q0.format("A")),
    "too large": (holding(-1e5), "weights_out_of_range", Q0.format("A")),
    "B without A": (lambda t: t.pop(Q0.format("A")) is None or None, "tensor_missing", Q0.format("A")),
    "A without B": (lambda t: t.pop(Q0.format("B")) is None or None, "tensor_missing", Q0.format("B")),
    "rank of A": (replaced(Q0.format("A"), np.zeros((8, 32), np.float32)), "rank_mismatch", Q0.format("A")),
    "rank of B": (replaced(Q0.format("B"), np.zeros((32, 16), np.float32)), "rank_mismatch", Q0.format("B")),
    "wide A": (replaced(Q0.format("A"), WIDE), "shape_mismatch", Q0.format("A")),
    "undersized A": (replaced(Q0.format("A"), WIDE[:, :16]), "shape_mismatch", Q0.format("A")),
    "undersized B": (replaced(Q0.format("B"), WIDE[:, :4]), "shape_mismatch", Q0.format("B")),
    "flat A": (replaced(Q0.format("A"), np.zeros(128, np.float32)), "shape_mismatch", Q0.format("A")),
    "layer 99": (
        renamed(Q0.format("A"), Q0.format("A").replace("layers.0", "layers.99")),
        "module_unknown",
        Q0.format("A").replace("layers.0", "layers.99"),
    ),
    "lm_head": (replaced("base_model.model.lm_head.lora_A.weight", WIDE), "module_not_allowed", None),
    "embedding": (
        replaced("base_model.model.model.embed_tokens.lora_embedding_A", WIDE),
        "module_not_allowed",
        "base_model.model.model.embed_tokens.lora_embedding_A",
    ),
    "not targeted": (
        lambda t: t | adapter_tensors(BASE, modules=("o_proj",)),
        "module_not_allowed",
        Q0.format("A").replace("q_proj", "o_proj"),
    ),
    "DoRA": (
        replaced("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", WIDE[0]),
        "adapter_type_not_supported",
        None,
    ),
    "LoRA bias": (replaced(Q0.format("B").replace("weight", "bias"), WIDE[0]), "adapter_type_not_supported", None),
    "adapter's name left in": (
        renamed(Q0.format("A"), Q0.format("A").replace("lora_A", "lora_A.default")),
        "tensor_name_invalid",
        None,
    ),
    "no prefix": (renamed(Q0.format("A"), Q0.format("A").removeprefix("base_model.")), "tensor_name_invalid", None),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_a_wrong_tensor_is_named_with_its_code(tmp_path, case):
    change, code, where = WRONG_TENSORS[case]
    verdict = judge_tensors(tmp_path, change)
    found = {problem.code: problem for problem in reversed(verdict.problems)}
    assert code in found, verdict
    assert found[code].file == WEIGHTS
    assert found[code].message.startswith(WEIGHTS)
    if where is not None:
        assert found[code].where == where


def test_no_tensor_of_the_base_at_all_is_refused(tmp_path):
    verdict = judge_tensors(tmp_path, lambda _: {"x": np.zeros(1, np.float32)})
    assert {"module_unknown", "tensor_name_invalid"} == {problem.code for problem in verdict.problems}
    assert "module_unknown" in {
        problem.code for problem in judge_tensors(tmp_path / "empty", lambda _: {"a": WIDE}).problems
    }


def test_a_layer_left_out_is_missing_unless_the_config_says_so(tmp_path):
    def first_layer_alone(tensors):
        return {name: weights for name, weights in tensors.items() if "layers.0." in name}

    assert {p.code for p in judge_tensors(tmp_path / "a", first_layer_alone).problems} == {"tensor_missing"}
    assert judge_tensors(tmp_path / "b", first_layer_alone, layers_to_transform=[0]).problems == ()


def test_double_precision_is_refused_with_the_types_that_are_served(tmp_path):
    verdict = judge_tensors(tmp_path, lambda tensors: None, dtype="F64")
    assert {problem.code for problem in verdict.problems} == {"dtype_not_allowed"}
    assert "F32, F16, BF16" in verdict.problems[0].message


def test_an_absurd_product_is_refused_though_every_weight_is_small(tmp_path):
    verdict = judge_tensors(tmp_path, lambda tensors: {name: w * 0 + 5_000 for name, w in tensors.items()})
    assert {problem.code for problem in verdict.problems} == {"weights_out_of_range"}


def test_an_adapter_of_a_larger_base_is_refused_by_its_shapes(tmp_path):
    accepted, verdict = judge(write_adapter(tmp_path, tiny_base(hidden=64)))
    assert accepted is None
    assert {problem.code for problem in verdict.problems} == {"shape_mismatch"}


def test_a_report_of_a_thousand_problems_shows_fifty_and_counts_the_rest(tmp_path):
    base = tiny_base(layers=100)
    folder = write_adapter(tmp_path, base, modules=("q_proj", "k_proj", "v_proj"), scale=np.inf)
    _, verdict = judge(folder, base, UploadLimits(plan_name="x", rank_max=64, bytes_max=10_000_000))
    assert len(verdict.problems) == 50
    assert verdict.notes == ("550 more problems are not shown",)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file_empty"),
        (pickle.dumps({"a": 1}), "format_not_allowed"),
        (b"PK\x03\x04" + bytes(100), "format_not_allowed"),
        (b"\x1f\x8b" + bytes(100), "archive_not_allowed"),
        (bytes(100), "header_invalid"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path, content, code):
    folder = write_adapter(tmp_path, BASE)
    (folder / WEIGHTS).write_bytes(content)
    assert [problem.code for problem in judge(folder)[1].problems] == [code]


def test_a_real_torch_zip_named_safetensors_is_refused(tmp_path):
    folder = write_adapter(tmp_path, BASE)
    with zipfile.ZipFile(folder / WEIGHTS, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    assert [problem.code for problem in judge(folder)[1].problems] == ["format_not_allowed"]


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


def test_more_bytes_than_the_plan_allows_are_refused(tmp_path):
    folder = write_adapter(tmp_path, BASE)
    _, verdict = judge(folder, limits=UploadLimits(plan_name="starter", rank_max=64, bytes_max=5000))
    assert [problem.code for problem in verdict.problems] == ["upload_too_large"]
    assert 'plan "starter" allows 5000' in verdict.problems[0].message


def test_every_message_can_be_shown_as_one_line_of_json(tmp_path):
    folder = write_adapter(tmp_path, BASE, **{"x\n\u202e": "y\x00"})
    (problem,) = judge(folder)[1].problems
    assert problem.message.isascii()
    assert problem.message.isprintable()
    json.dumps(problem.message)
