"""What ``adapter_config.json`` may say."""

import json
import time

import msgspec
import pytest
from peft import LoraConfig

from adapters.config_rules import judge_config
from adapters.verdict import Report
from tests.fixtures.peft_adapters import ALL_KINDS, adapter_config, tiny_base

BASE = tiny_base()
KNOWN = {BASE.id, BASE.hub_name, "other-7b", "someone/Other-7B"}


def judge(config, *, rank_max=64):
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    report = Report()
    found = judge_config(text, BASE, KNOWN, rank_max=rank_max, plan_name="starter", report=report)
    verdict = report.verdict()
    assert (found is None) == bool(verdict.problems)
    return found, verdict


def changed(**changes):
    return judge(adapter_config(BASE, **changes))


def test_what_peft_writes_is_accepted_whatever_plain_lora_it_describes():
    for options in (
        {},
        {"task_type": "CAUSAL_LM", "lora_dropout": 0.05, "use_rslora": True},
        {"init_lora_weights": "gaussian"},
        {
            "init_lora_weights": False,
            "exclude_modules": ["k_proj"],
            "layers_to_transform": [1],
            "layers_pattern": "layers",
        },
        {"revision": "main", "inference_mode": True},
    ):
        config = LoraConfig(base_model_name_or_path=BASE.hub_name, target_modules=["q_proj"], **options).to_dict()
        config["target_modules"] = list(config["target_modules"])
        if config["exclude_modules"]:
            config["exclude_modules"] = list(config["exclude_modules"])
        found, verdict = judge(config)
        assert verdict.problems == ()
        assert found.rank == found.alpha == 8


def test_the_class_that_peft_notes_without_a_task_type_is_accepted_and_code_elsewhere_is_not():
    library = "transformers.models.llama.modeling_llama"
    assert changed(auto_mapping={"base_model_class": "LlamaForCausalLM", "parent_library": library})[0]
    for mapping in ({"base_model_class": "X", "parent_library": "os"}, {"parent_library": library, "x": 1}, "x", {}):
        (problem,) = changed(auto_mapping=mapping)[1].problems
        assert (problem.code, problem.where) == ("config_field_not_allowed", "auto_mapping")


def test_a_rank_above_the_plan_is_refused_with_both_numbers():
    (problem,) = changed(r=128)[1].problems
    assert problem.code == "rank_too_large"
    assert problem.message == 'adapter_config.json: r is 128; plan "starter" allows 64: train with r at most 64'


def test_a_rank_above_what_replicas_serve_is_refused_whatever_the_plan_allows():
    base = msgspec.structs.replace(tiny_base(), rank_max=16)
    report = Report()
    text = json.dumps(adapter_config(base, rank=32)).encode()
    assert judge_config(text, base, {base.id}, rank_max=64, plan_name="starter", report=report) is None
    (problem,) = report.verdict().problems
    assert problem.code == "rank_too_large"
    assert problem.message.endswith(f"replicas of {base.id} serve ranks up to 16: train with r at most 16")


@pytest.mark.parametrize(
    ("changes", "code", "where"),
    [
        *[({"r": value}, "config_invalid", "r") for value in (1e-300, True, "8", 0, -1, 8.0, None)],
        ({"r": 4096}, "rank_too_large", "r"),
        *[({"lora_alpha": value}, "config_invalid", "lora_alpha") for value in (1e308, -1e30, 0, True, "16", None)],
        ({"use_rslora": "yes"}, "config_invalid", "use_rslora"),
        ({"rank_pattern": {"q_proj": 4}}, "config_field_not_allowed", "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 4}}, "config_field_not_allowed", "alpha_pattern"),
        *[
            ({"target_modules": value}, "config_invalid", "target_modules")
            for value in (
                "q_proj",
                "all-linear",
                "(.*)*Z",
                ["(.*)*Z"],
                [1],
                {},
                [],
                None,
                ["a" * 300],
                ["q_proj"] * 5000,
            )
        ],
        ({"target_modules": ["layers.9.self_attn.q_proj"]}, "module_unknown", "target_modules"),
        ({"target_modules": ["q_proj", "lm_head"]}, "module_not_allowed", "target_modules"),
        ({"target_modules": ["query"]}, "module_not_allowed", "target_modules"),
        ({"exclude_modules": ".*"}, "config_invalid", "exclude_modules"),
        ({"layers_to_transform": ["0"]}, "config_invalid", "layers_to_transform"),
        ({"layers_pattern": "(.*)*Z"}, "config_field_not_allowed", "layers_pattern"),
        ({"modules_to_save": ["lm_head"]}, "config_field_not_allowed", "modules_to_save"),
        ({"trainable_token_indices": [1]}, "config_field_not_allowed", "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "config_field_not_allowed", "layer_replication"),
        ({"megatron_core": "evil.module"}, "config_field_not_allowed", "megatron_core"),
        ({"megatron_config": {"a": 1}}, "config_field_not_allowed", "megatron_config"),
        ({"tokenizer_kwargs": {"trust_remote_code": True}}, "config_field_not_allowed", "tokenizer_kwargs"),
        ({"fan_in_fan_out": True}, "config_field_not_allowed", "fan_in_fan_out"),
        ({"target_parameters": ["experts"]}, "config_field_not_allowed", "target_parameters"),
        ({"something_new": 3}, "config_field_not_allowed", "something_new"),
        ({"use_dora": True}, "adapter_type_not_supported", "use_dora"),
        ({"bias": "all"}, "adapter_type_not_supported", "bias"),
        ({"lora_bias": True}, "adapter_type_not_supported", "lora_bias"),
        ({"peft_type": "IA3"}, "adapter_type_not_supported", "peft_type"),
        ({"peft_type": None}, "config_invalid", "peft_type"),
        ({"task_type": "SEQ_CLS"}, "adapter_type_not_supported", "task_type"),
        ({"use_qalora": True}, "adapter_type_not_supported", "use_qalora"),
        ({"use_bdlora": {"a": 1}}, "adapter_type_not_supported", "use_bdlora"),
        ({"alora_invocation_tokens": [1]}, "adapter_type_not_supported", "alora_invocation_tokens"),
        *[
            ({"init_lora_weights": value}, "adapter_type_not_supported", "init_lora_weights")
            for value in ("pissa", "olora", "corda", "loftq", "pissa_niter_4", 3)
        ],
        *[
            ({"base_model_name_or_path": value}, "base_model_mismatch", "base_model_name_or_path")
            for value in (
                "other-7b",
                "someone/other-7b",
                "meta-llama/Llama-3.1-8B",
                "https://example.com/m",
                "s3://b/m",
            )
        ],
        ({"base_model_name_or_path": 7}, "config_invalid", "base_model_name_or_path"),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes, code, where):
    (problem,) = changed(**changes)[1].problems
    assert (problem.code, problem.where, problem.file) == (code, where, "adapter_config.json")
    assert problem.message.startswith("adapter_config.json: ")
    assert len(problem.message) < 400


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"r": NaN}', "config_invalid"),
        (b'{"lora_alpha": Infinity}', "config_invalid"),
        (b'{"r": 8, "r": 16}', "config_invalid"),
        (b"[]", "config_invalid"),
        (b"{", "config_invalid"),
        (b" " * 10_000_000, "config_too_large"),
        (b"[" * 50_000, "config_invalid"),
        (b'{"a":' * 50_000, "config_too_large"),
    ],
)
def test_what_is_not_a_small_json_object_is_refused(text, code):
    assert [problem.code for problem in judge(text)[1].problems] == [code]


def test_a_regular_expression_is_refused_at_once():
    started = time.process_time()
    changed(target_modules="(.*)*Z", exclude_modules="(.*)*Z", layers_pattern="(.*)*Z")
    assert time.process_time() - started < 0.05


@pytest.mark.parametrize("name", [BASE.id, BASE.hub_name, BASE.hub_name.upper()])
def test_the_base_may_be_named_either_way(name):
    found, verdict = changed(base_model_name_or_path=name)
    assert found is not None
    assert verdict.notes == ()


@pytest.mark.parametrize(
    "name", ["/home/me/model", "./model", "../models/x", "~/x", "C:\\models\\x", "runs/2026/model", "", None, "."]
)
def test_a_path_on_the_trainers_disk_is_accepted_with_a_note(name):
    found, verdict = changed(base_model_name_or_path=name)
    assert found is not None
    assert len(verdict.notes) == 1


def test_targets_mean_what_they_mean_to_peft():
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
    assert changed(r=16, lora_alpha=32)[0].scaling == 2
    assert changed(r=16, lora_alpha=32, use_rslora=True)[0].scaling == 8
    assert changed(r=16, lora_alpha=0.5)[0].alpha == 0.5
