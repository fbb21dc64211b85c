"""Names that trainers write, and the modules that they mean."""

import pytest

from adapters.validation.tensor_names import canonical_name, map_names
from tests.fixtures.uploads.peft_adapters import tiny_base

Q0 = "model.layers.0.self_attn.q_proj"
MODULES = tiny_base().modules


@pytest.mark.parametrize(
    "name",
    [
        f"base_model.model.{Q0}.lora_A.weight",
        f"base_model.model.{Q0}.lora_A.default.weight",
        f"base_model.model.{Q0}.lora_A.my-adapter_2.weight",
        f"{Q0}.lora_A.weight",
        "layers.0.self_attn.q_proj.lora_A.weight",
        f"model.{Q0}.lora_A.weight",
        "base_model.model.layers.0.self_attn.q_proj.lora_A.weight",
        f"base_model.model.model.{Q0}.lora_A.weight",
        f"base_model.model.base_model.model.{Q0}.lora_A.weight",
        f"_orig_mod.base_model.model.{Q0}.lora_A.default.weight",
        f"base_model.model._orig_mod.{Q0}.lora_A.weight",
        f"module.base_model.model.{Q0}.lora_A.default.weight",
        f"module._orig_mod.base_model.model.{Q0}.lora_A.weight",
        f"_forward_module.model.base_model.model.{Q0}.lora_A.default.weight",
        "_fsdp_wrapped_module.model.layers.0._checkpoint_wrapped_module.self_attn.q_proj.lora_A.default.module.weight",
        "base_model.model.model.layers.0._checkpoint_wrapped_module.self_attn.q_proj._orig_mod.lora_A.default.weight",
        f"pretrained_model.base_model.model.{Q0}.lora_A.default.weight",
        "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight",
        f"{Q0}.lora_A",
    ],
)
def test_a_name_of_a_trainer_means_its_module(name):
    assert map_names([name], MODULES).places == {name: (Q0, "A")}


@pytest.mark.parametrize(
    "name",
    [
        f"base_model.model.{Q0}.lora_B.bias",
        f"base_model.model.{Q0}.lora_B.default.bias",
        f"base_model.model.{Q0}.lora_A.one.two.weight",
        f"base_model.model.{Q0}.lora_C.weight",
        f"base_model.model.{Q0}.lora_a.weight",
        f"base_model.model.{Q0}.weight",
        f"base_model.model.vision_tower.{Q0}.lora_A.weight",
        f"base_model.model.actor.{Q0}.lora_A.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.q_proj.lora_A.weight",
        "base_model.model.lora_A.weight",
        "lora_A.weight",
        "module",
    ],
)
def test_a_name_that_means_no_module_has_no_place(name):
    mapped = map_names([name], MODULES)
    assert (mapped.places, mapped.doubled) == ({}, [])


def test_two_names_of_one_weight_have_no_place():
    first, second = canonical_name(Q0, "A"), f"_orig_mod.{Q0}.lora_A.weight"
    other = canonical_name(Q0, "B")
    mapped = map_names([first, second, other], MODULES)
    assert mapped.doubled == [(first, second)]
    assert mapped.places == {other: (Q0, "B")}


def test_the_names_of_adapters_are_known():
    names = [f"{Q0}.lora_A.default.weight", f"{Q0}.lora_B.other.weight", "model.layers.1.mlp.up_proj.lora_A.weight"]
    assert map_names(names, MODULES).adapters == ["default", "other"]


def test_modules_that_differ_in_their_prefix_alone_are_found_by_their_whole_name_alone():
    modules = ["model.layers.0.self_attn.q_proj", "language_model.layers.0.self_attn.q_proj"]
    names = [canonical_name(module, "A") for module in modules]
    assert map_names(names, modules).places == {
        name: (module, "A") for name, module in zip(names, modules, strict=True)
    }
    assert map_names(["layers.0.self_attn.q_proj.lora_A.weight"], modules).places == {}
