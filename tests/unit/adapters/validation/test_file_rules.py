"""Which files an upload may contain, by name."""

import pytest

from adapters.report import ReportBuilder
from adapters.validation.file_rules import REQUIRED_FILES, check_names


def judge(*extra: str):
    report = ReportBuilder()
    check_names([*REQUIRED_FILES, *extra], report)
    return report.build()


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "trainer_state.json", "all_results.json", "train_results.json", "generation_config.json",
        "LICENSE", "LICENSE-APACHE", "NOTICE.txt", ".gitattributes", ".DS_Store", "trainer_log.jsonl", "latest",
        "training_loss.png", "training_args.yaml", "events.out.tfevents.1719922014.host.1.0",
    ],
)  # fmt: skip
def test_files_left_by_training_are_skipped_with_a_note(name):
    verdict = judge(name)
    assert verdict.problems == ()
    assert verdict.notes == (f"{name} was passed over: it is no part of an adapter",)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("LICENSE.py", "file_not_allowed"),
        ("events.out.tfevents.pt", "format_not_allowed"),
        ("checkpoint-10/README.md", "file_not_allowed"),
        ("", "file_not_allowed"),
    ],
)
def test_other_files_are_refused_whatever_part_of_their_name_is_allowed(name, code):
    (problem,) = judge(name).problems
    assert problem.code == code
    assert len(problem.file) <= 80


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt", "training_args.bin"])
def test_pickled_trainer_files_are_refused_by_name_with_advice_to_leave_them_out(name):
    (problem,) = judge(name).problems
    assert problem.file == name
    assert "leave it out" in problem.message


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["adapter_config.json", "adapters.safetensors", "0000100_adapters.safetensors"],
            "MLX's format: mlx-lm has no",
        ),
        (["adapter_config.json", "adapter_model.bin"], "save_pretrained(safe_serialization=True)"),
        (["adapter_config.json", "adapter_model-00001-of-00002.safetensors"], "join them in one file"),
        (["pytorch_lora_weights.safetensors"], "is of diffusers"),
        (["my-lora-f16.gguf"], "upload the PEFT adapter that it was made from"),
        (["global_step100", "zero_to_fp32.py", "latest"], "zero_to_fp32.py (--exclude_frozen_parameters"),
        (["pytorch_model_fsdp_0", "optimizer_0"], "FULL_STATE_DICT"),
        (["config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"], "mergekit-extract-lora"),
        (["config.json", "model-00001-of-00002.safetensors"], "is of a full model"),
        (["consolidated.00.pth", "params.json"], "is of a full model"),
        ([], "a PEFT adapter is adapter_config.json and adapter_model.safetensors"),
    ],
)
def test_what_is_there_instead_of_an_adapter_is_named_with_what_helps(names, says):
    report = ReportBuilder()
    check_names(names, report)
    problem = report.build().problems[0]
    assert problem.code == "file_missing"
    assert says in problem.message
