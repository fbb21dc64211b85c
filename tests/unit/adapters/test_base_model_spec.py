"""Reading the specification of a base model from its checkpoint directory."""

import json

import numpy as np
import pytest
import safetensors.numpy

from adapters.base_model_spec import describe, kind_of, layer_of
from core.errors import Unprocessable
from tests.fixtures.uploads.peft_adapters import CHATML, byte_tokenizer, tiny_base


def write_checkpoint(folder, *, shards=1, template_in="jinja", special=lambda token: token):
    folder.mkdir()
    base = tiny_base()
    tensors = {f"{module}.weight": np.zeros((out, inn), np.float16) for module, (inn, out) in base.modules.items()}
    tensors["model.embed_tokens.weight"] = np.zeros((259, 32), np.float16)
    tensors["model.layers.0.input_layernorm.weight"] = np.zeros(32, np.float16)
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        safetensors.numpy.save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "vocab_size": 259}))
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    config = {"bos_token": special("<|im_start|>"), "eos_token": special("<|im_end|>")}
    if template_in == "jinja":
        (folder / "chat_template.jinja").write_text(CHATML)
    elif template_in == "config":
        config["chat_template"] = CHATML
    elif template_in == "list":
        config["chat_template"] = [{"name": "tool", "template": "x"}, {"name": "default", "template": CHATML}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"shards": 3},
        {"template_in": "config"},
        {"template_in": "list"},
        {"special": lambda token: {"content": token, "lstrip": False}},
    ],
)
def test_every_layout_of_a_checkpoint_gives_the_same_spec(tmp_path, layout):
    base = tiny_base()
    found = describe(write_checkpoint(tmp_path / "base", **layout), id=base.id, hub_name=base.hub_name)
    assert found == base


def test_a_modules_name_gives_its_kind_and_layer():
    assert kind_of("model.layers.11.self_attn.q_proj") == "q_proj"
    assert layer_of("model.layers.11.self_attn.q_proj") == 11


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"123"), "model.safetensors"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "chat_template.jinja"),
        (lambda folder: (folder / "config.json").write_text('{"vocab_size": 0}'), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused_naming_the_file(tmp_path, damage, file):
    folder = write_checkpoint(tmp_path / "base")
    damage(folder)
    with pytest.raises(Unprocessable, match=file) as refused:
        describe(folder, id="x", hub_name="y")
    assert refused.value.code == "base_model_invalid"
