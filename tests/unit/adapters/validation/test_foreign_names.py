"""What a report says of tensors that are no LoRA weights of the base model: what they are, and what helps."""

import numpy as np
import pytest

from adapters.report import ReportBuilder
from adapters.safetensors_header import TensorEntry
from adapters.validation.config_rules import AdapterConfig
from adapters.validation.tensor_rules import check_tensors
from tests.fixtures.uploads.peft_adapters import adapter_tensors, tiny_base

BASE = tiny_base()
CONFIG = AdapterConfig(rank=4, alpha=8, use_rslora=False, modules=None, ranks=frozenset({4}))
Q0 = "model.layers.0.self_attn.q_proj"
LAYERS = [f"base_model.model.model.layers.{layer}" for layer in range(2)]


def problems(names, *, beside_lora=True):
    shapes = {name: weights.shape for name, weights in adapter_tensors(BASE).items()} if beside_lora else {}
    shapes |= dict.fromkeys(names, (2, 2))
    tensors = [
        TensorEntry(name=name, dtype="F32", shape=shape, begin=0, end=int(np.prod(shape)) * 4)
        for name, shape in shapes.items()
    ]
    report = ReportBuilder()
    check_tensors(tensors, CONFIG, BASE, report)
    return report.build().problems


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [
        ([f"{Q0}.lora_a", f"{Q0}.lora_b"], "format_not_allowed", ["MLX", "transpose", "convert-an-adapter"]),
        (["layers.0.attn.q_proj.lora_a.weight"], "tensor_name_invalid", ["torchtune", "FullModelHFCheckpointer"]),
        (["lora_unet_down_blocks_0_proj.lora_up.weight"], "adapter_type_not_supported", ["kohya"]),
        (["unet.down_blocks.0.attn.to_q.lora.down.weight"], "adapter_type_not_supported", ["diffusers"]),
        (["transformer.transformer_blocks.0.to_q.lora_A.weight"], "adapter_type_not_supported", ["image model"]),
        ([f"{each}.mlp.up_proj.hada_w1_a" for each in LAYERS], "adapter_type_not_supported", ["LoHa", "save_as_lora"]),
        (["lycoris_layers_0_mlp_up_proj.lokr_w1"], "adapter_type_not_supported", ["LoKr"]),
        ([f"{layer}.mlp.down_proj.ia3_l" for layer in LAYERS], "adapter_type_not_supported", ["IA3", "plain LoRA"]),
        (["base_model.vera_A", "base_model.model.x.vera_lambda_b"], "adapter_type_not_supported", ["VeRA"]),
        (["prompt_embeddings"], "adapter_type_not_supported", ["prompt or prefix tuning"]),
        ([f"base_model.model.{Q0}.lora_magnitude_vector.default.weight"], "adapter_type_not_supported", ["DoRA"]),
        ([f"base_model.model.{Q0}.lora_E"], "adapter_type_not_supported", ["AdaLoRA"]),
        ([f"base_model.model.{Q0}.lora_B.default.bias"], "adapter_type_not_supported", ["lora_bias"]),
        (["_fsdp_wrapped_module._flat_param"], "tensor_name_invalid", ["FULL_STATE_DICT"]),
        ([f"{Q0}.base_layer.weight.absmax", f"{Q0}.SCB"], "module_not_allowed", ["quantized", "save_pretrained"]),
        (["v_head.summary.weight"], "module_not_allowed", ["value head", "pretrained_model.save_pretrained"]),
        (["base_model.model.lm_head.modules_to_save.default.weight"], "module_not_allowed", ["modules_to_save"]),
        (["base_model.model.model.embed_tokens.weight"], "module_not_allowed", ["save_embedding_layers=False"]),
        (["base_model.model.lm_head.lora_A.weight"], "module_not_allowed", ["train without it"]),
        (["base_model.model.score.weight"], "module_not_allowed", ["train without it"]),
        (["base_model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight"], "module_not_allowed", ["train"]),
        ([f"base_model.model.{Q0}.base_layer.weight"], "tensor_name_invalid", ["base model", "save_pretrained"]),
        ([f"student.{Q0}.lora_A.weight"], "tensor_name_invalid", ["behind the prefix student", "rename"]),
        (["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"], "module_unknown", ["that it was trained on"]),
        (["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"], "module_unknown", ["trained on"]),
        ([f"base_model.model.{Q0}.lora_C.weight"], "tensor_name_invalid", ["not a name that PEFT writes"]),
    ],
)  # fmt: skip
def test_a_foreign_name_is_explained_once_with_what_helps(names, code, says):
    (problem,) = problems(names)
    assert (problem.code, problem.count, problem.where) == (code, len(names), names[0])
    assert [words for words in says if words not in problem.message] == [], problem.message


def test_a_full_model_is_one_problem_and_nothing_else_is_missing():
    names = [f"{module}.weight" for module in BASE.modules] + ["model.embed_tokens.weight", "model.norm.weight"]
    (problem,) = problems(names, beside_lora=False)
    assert (problem.code, problem.count) == ("module_unknown", len(names))
    assert "mergekit-extract-lora" in problem.message


def test_several_adapters_in_one_file_are_refused_by_their_names():
    (problem,) = problems([f"{Q0}.lora_A.default.weight", f"{Q0}.lora_A.tone.weight"], beside_lora=False)
    assert (
        'adapters, default and tone; upload one of them: model.save_pretrained(folder, selected_adapters=["default"])'
        in (problem.message)
    )


def test_an_empty_file_says_that_nothing_was_gathered():
    (problem,) = problems([], beside_lora=False)
    assert (problem.code, "ZeRO-3" in problem.message) == ("module_unknown", True)
