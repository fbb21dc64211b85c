"""The accepted values of ``adapter_config.json`` and their meaning. Refused values are in the corpus of uploads."""

import json
import time

import msgspec
import pytest

from adapters.report import ReportBuilder
from adapters.validation.config_rules import check_config
from tests.fixtures.uploads.peft_adapters import ALL_KINDS, adapter_config, tiny_base

BASE = tiny_base()
MIRROR = "unsloth/Tiny-Instruct-bnb-4bit"
KNOWN = {name.casefold(): BASE.id for name in (BASE.id, BASE.hub_name, MIRROR)} | {
    "other-7b": "other-7b",
    "someone/other-7b": "other-7b",
}


def judge(config, *, rank_max=64):
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    report = ReportBuilder()
    found = check_config(text, BASE, KNOWN, rank_max=rank_max, plan_name="starter", report=report)
    verdict = report.build()
    assert (found is None) == bool(verdict.problems)
    return found, verdict


def changed(**changes):
    return judge(adapter_config(BASE, **changes))


def test_the_class_that_peft_writes_without_a_task_type_is_accepted():
    library = "transformers.models.llama.modeling_llama"
    assert changed(auto_mapping={"base_model_class": "LlamaForCausalLM", "parent_library": library})[0]


def test_a_rank_above_what_replicas_serve_is_refused_whatever_the_plan_allows():
    base = msgspec.structs.replace(tiny_base(), rank_max=16)
    report = ReportBuilder()
    text = json.dumps(adapter_config(base, rank=32)).encode()
    assert check_config(text, base, {base.id: base.id}, rank_max=64, plan_name="starter", report=report) is None
    (problem,) = report.build().problems
    assert problem.code == "rank_too_large"
    assert problem.message.endswith(f"replicas of {base.id} serve ranks up to 16: train with r at most 16")


def test_no_regular_expression_is_run():
    started = time.process_time()
    patterns = {f"(.*)*{number}Z": 4 for number in range(1000)}
    changed(target_modules="(.*)*Z", exclude_modules="(.*)*Z", layers_pattern="(.*)*Z", rank_pattern=patterns)
    changed(alpha_pattern=patterns)
    assert time.process_time() - started < 0.2


@pytest.mark.parametrize("field", ["target_modules", "exclude_modules"])
def test_where_modules_are_given_by_a_pattern_the_tensors_decide(field):
    assert changed(**{field: r".*self_attn\.(q|v)_proj"})[0].modules is None
    (problem,) = changed(**{field: "a" * 16_385})[1].problems
    assert (problem.code, problem.where) == ("config_invalid", field)


def test_modules_may_have_ranks_and_alphas_of_their_own():
    found = changed(
        r=8, lora_alpha=16, rank_pattern={"q_proj": 4, r"layers\.[01]\..*v_proj": 2},
        alpha_pattern={r"^model\.layers\.1\.self_attn\.q_proj$": 2, "self_attn.q_proj": 32, "v_proj": 1},
    )[0]  # fmt: skip
    assert found.ranks == {2, 4, 8}
    assert found.alpha_of("model.layers.1.self_attn.q_proj") == 2
    assert found.alpha_of("model.layers.0.self_attn.q_proj") == 32
    assert found.alpha_of("model.layers.0.self_attn.k_proj") == 16
    assert found.scaling_of("model.layers.0.self_attn.q_proj", 4) == 8


@pytest.mark.parametrize("name", [BASE.id, BASE.hub_name, BASE.hub_name.upper()])
def test_the_base_model_may_be_named_by_id_or_hub_name(name):
    found, verdict = changed(base_model_name_or_path=name)
    assert found is not None
    assert verdict.notes == ()


@pytest.mark.parametrize("name", [MIRROR, MIRROR.upper()])
def test_a_further_name_of_the_base_model_is_accepted_with_a_note(name):
    found, verdict = changed(base_model_name_or_path=name)
    assert found is not None
    (note,) = verdict.notes
    assert f"a copy of {BASE.hub_name}" in note


@pytest.mark.parametrize(
    "name", ["/home/me/model", "./model", "../models/x", "~/x", "C:\\models\\x", "runs/2026/model", "", None, "."]
)
def test_a_path_on_the_trainers_disk_is_accepted_with_a_note(name):
    found, verdict = changed(base_model_name_or_path=name)
    assert found is not None
    assert len(verdict.notes) == 1


def test_targets_have_the_meaning_they_have_in_peft():
    everything = changed(target_modules=list(ALL_KINDS))[0].modules
    assert everything == set(BASE.modules)
    assert changed(target_modules=["layers.1.self_attn.q_proj"])[0].modules == {"model.layers.1.self_attn.q_proj"}
    assert changed(target_modules=["self_attn.q_proj"], layers_to_transform=1)[0].modules == {
        "model.layers.1.self_attn.q_proj"
    }
    assert changed(target_modules=["q_proj", "k_proj"], exclude_modules=["layers.0.self_attn.q_proj", "k_proj"])[
        0
    ].modules == {"model.layers.1.self_attn.q_proj"}


def test_scaling_is_that_of_peft():
    module = "model.layers.0.self_attn.q_proj"
    assert changed(r=16, lora_alpha=32)[0].scaling_of(module, 16) == 2
    assert changed(r=16, lora_alpha=32, use_rslora=True)[0].scaling_of(module, 16) == 8
    assert changed(r=16, lora_alpha=0.5)[0].alpha == 0.5


MLX = {
    "fine_tune_type": "lora", "num_layers": 16, "lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0},
    "model": "mlx-community/Tiny-Instruct-4bit", "iters": 1000, "learning_rate": 1e-5, "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "code", "says"),
    [
        (MLX, "format_not_allowed", ["MLX", "transpose lora_a and lora_b", "convert-an-adapter"]),
        ({"architectures": ["LlamaForCausalLM"], "hidden_size": 32}, "config_invalid", ["no adapter's", "PEFT"]),
        ({"peft_type": "LOKR", "r": 8, "alpha": 8}, "adapter_type_not_supported", ["save_as_lora"]),
        ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20}, "adapter_type_not_supported", ["plain LoRA"]),
        ({"peft_type": "IA3", "feedforward_modules": ["down_proj"]}, "adapter_type_not_supported", ["plain LoRA"]),
    ],
)  # fmt: skip
def test_a_config_of_another_format_or_method_is_one_problem(config, code, says):
    (problem,) = judge(config)[1].problems
    assert problem.code == code
    assert [words for words in says if words not in problem.message] == [], problem.message


def test_names_in_a_config_are_read_without_wrappers():
    q0 = "model.layers.0.self_attn.q_proj"
    found, _ = changed(target_modules=[f"_orig_mod.{q0}"], alpha_pattern={f"_orig_mod.{q0}": 4})
    assert found.modules == {q0}
    assert found.alpha_of(q0) == 4
