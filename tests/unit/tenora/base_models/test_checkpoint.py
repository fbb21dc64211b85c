"""A folder that is no complete base model: everything that it lacks is named at once, with the fix."""

import json

import pytest

from tenora.base_models.checkpoint import missing_parts, read_checkpoint

COMPLETE = {
    "config.json": "{}", "model.safetensors": "", "tokenizer.json": "{}", "tokenizer_config.json": "{}",
    "chat_template.jinja": "x",
}  # fmt: skip
INDEX = "model.safetensors.index.json"
SHARDS = json.dumps({"weight_map": {name: f"model-{name}.safetensors" for name in "123"}})
TEMPLATE_INSIDE = json.dumps({"chat_template": "x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"chat_template.jinja": None, "tokenizer_config.json": TEMPLATE_INSIDE}, []),
        ({"chat_template.jinja": None}, ["the chat template is missing"]),
        ({"config.json": None}, ["config.json is missing"]),
        ({"tokenizer.json": None}, ["AutoTokenizer as A"]),
        ({"tokenizer.json": None, "tokenizer.model": ""}, ["AutoTokenizer as A"]),
        ({"tokenizer_config.json": None}, ["tokenizer_config.json is missing"]),
        ({"model.safetensors": None}, ["model.safetensors is missing; download"]),
        ({"model.safetensors": None, "pytorch_model.bin": ""}, ["pytorch_model.bin cannot be read; convert it"]),
        ({"model.safetensors": None, "consolidated.safetensors": ""}, ["in the format of transformers"]),
        ({"model.safetensors": None, "model.Q4_K_M.gguf": ""}, ["model.Q4_K_M.gguf cannot be read"]),
        ({"model.safetensors": None, INDEX: SHARDS, "model-2.safetensors": ""}, ["2 of 3 weight files are missing"]),
        ({"model.safetensors": None, "tokenizer.json": None}, ["model.safetensors is", "tokenizer.json is"]),
        (dict.fromkeys(COMPLETE) | {"adapter_config.json": "{}"}, ["it is a LoRA adapter; upload it with"]),
        (dict.fromkeys(COMPLETE) | {"snapshots/abc/config.json": "{}"}, ["snapshots/abc"]),
        (dict.fromkeys(COMPLETE), ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]),
    ],
)
def test_each_missing_part_is_named_once_with_its_fix(tmp_path, changes, said):
    for name, content in (COMPLETE | changes).items():
        if content is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
    found = missing_parts(tmp_path)
    assert [part in line for line, part in zip(found, said, strict=True)] == [True] * len(said), found


def test_a_file_in_place_of_the_folder_and_a_model_of_other_modules_are_refused(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_text("")
    with pytest.raises(ValueError, match="is a file; give the folder"):
        read_checkpoint(file, model_id="m", hub_name=None)
    for name, content in (COMPLETE | {"config.json": json.dumps({"text_config": {}})}).items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="max_position_embeddings must be a positive integer"):
        read_checkpoint(tmp_path, model_id="m", hub_name=None)
